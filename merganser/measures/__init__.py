"""Measures: how well a merge does, how much tasks interfere, and what of each task a merge keeps."""
