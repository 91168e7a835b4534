"""Studies beside the comparison: merges of fewer tasks, and each task's own delta cut to a lower rank."""
