"""Nodes: machines that share nothing with the run but the DVC remote."""
