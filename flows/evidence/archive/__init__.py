"""A comparison as one file, which is checked and restored elsewhere with nothing but the file."""
