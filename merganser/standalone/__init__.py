"""Merging without the pipeline: checkpoints in, checkpoints out."""
