"""Scheduling: submit ready stages, process their outcomes, and account for resources."""
