"""Kinds of task: each module checks, prepares and scores the data of one, found by its file name."""
