"""A comparison as one file, which anybody can check and restore without anything else."""
