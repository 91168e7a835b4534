"""Sources: download checkpoints and data, and follow branches of a hub."""
