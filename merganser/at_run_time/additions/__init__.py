"""Additions to a network: each module has the name of its file in a merge's folder."""
