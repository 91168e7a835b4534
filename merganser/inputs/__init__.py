"""The inputs of methods: one layer of all tasks at a time, from files or directly from the models."""
