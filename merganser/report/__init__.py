"""The report: one self-contained page, tables as CSV, plots as SVG."""
