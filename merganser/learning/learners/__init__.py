"""The learners, one a module."""
