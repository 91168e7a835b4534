"""Kinds of statistic: each module measures one of a task's model, found by its file name."""
