"""Additions to a network, each a module named as the file that a merge keeps for it."""
