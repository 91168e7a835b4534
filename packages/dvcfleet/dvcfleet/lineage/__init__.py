"""Lineage: what results were made of, checked against the files, run again, and exported to other tools."""
