"""Merging without the pipeline: from checkpoints on disk to checkpoints on disk."""
