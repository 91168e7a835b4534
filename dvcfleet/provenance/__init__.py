"""Provenance: the lineage of results, its audit, and its export to other tools."""
