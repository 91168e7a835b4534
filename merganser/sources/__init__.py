"""Sources: bring checkpoints and data here, follow branches of a hub."""
