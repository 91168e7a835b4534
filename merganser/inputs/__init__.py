"""What methods read: one layer of all tasks at a time, from files or straight from the models."""
