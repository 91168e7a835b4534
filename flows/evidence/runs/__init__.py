"""Runs of a comparison: what is kept of each, what differs between two of them, and their history."""
