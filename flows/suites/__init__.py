"""Ready-made comparisons: their files, the papers' figures for them, and the one in use."""
