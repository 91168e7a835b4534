"""The evidence for results: lineage, audits, signatures, archives, saved runs and their differences."""
