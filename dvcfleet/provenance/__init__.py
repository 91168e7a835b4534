"""The audit: where a result comes from, whether all is as it was, and the same for other tools to read."""
