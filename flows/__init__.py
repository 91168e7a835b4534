"""The orchestration: plan, run, compare, and the command line."""
