"""Ready comparisons: their files, what papers report of them, and which one is in use."""
