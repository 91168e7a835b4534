"""What `merganser X` does in a comparison."""
