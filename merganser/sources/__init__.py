"""Sources: fetch checkpoints and data, follow branches of a hub."""
