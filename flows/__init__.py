"""The orchestration: plan, run, watch."""
