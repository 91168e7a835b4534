"""Studies besides the comparison: merges of fewer tasks, and each task's own delta at lower ranks."""
