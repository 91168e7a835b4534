"""Execution: run a stage's commands in processes of their own."""
