"""Scheduling: which ready stages start next, how long they are expected to take, and the resources that they share."""
