"""Merganser compares model-merging methods: the library of checkpoints, methods and measures."""
