"""What the project's developers run: no part of what is installed."""
