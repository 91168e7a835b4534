"""What the embedded suites share: their stages' command line, settings, saved data sets and training loop."""
