"""Checkpoints: lazy named tensors of any kind of file, adapters, and the kinds of parameters."""
