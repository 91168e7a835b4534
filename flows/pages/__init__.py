"""The pages beside the report: the start page, the report so far, the history, what papers reproduce."""
