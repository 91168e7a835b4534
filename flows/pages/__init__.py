"""The pages besides the report: the start page, the report so far, the history, and papers' figures."""
