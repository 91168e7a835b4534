"""Configurations of mergekit, turned into merges by Merganser."""
