"""The repositories of comparisons: what tells them apart, and what they share."""
