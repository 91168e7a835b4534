"""Checkpoints: named tensors of any file format, read on demand; adapters; and the kinds of parameters."""
