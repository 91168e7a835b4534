"""What the steps of a comparison's run do: check, plan, run, report."""
