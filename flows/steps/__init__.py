"""The steps of a comparison's run: check, plan, run, report."""
