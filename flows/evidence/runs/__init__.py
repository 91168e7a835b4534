"""Runs of a comparison: what is saved of each, differences between two of them, and their history."""
