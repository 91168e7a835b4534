"""What says where results come from: lineage, audits, signatures, archives, saved runs and how they differ."""
