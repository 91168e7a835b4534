"""Lineage: the origin of results, checked against the files, run again, and exported to other tools."""
