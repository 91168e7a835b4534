"""Evaluation: data sets and scores, by kind of task."""
