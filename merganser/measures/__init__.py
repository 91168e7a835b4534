"""Measures: how well a merge performs, how much tasks interfere, and how much of each task a merge retains."""
