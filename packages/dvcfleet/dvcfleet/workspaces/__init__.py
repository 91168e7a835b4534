"""Workspaces: where stages run, and where their results are kept: the run's own folder, or nodes."""
