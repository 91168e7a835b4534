"""Scheduling: submit what is ready, take back what is done, count what is free."""
