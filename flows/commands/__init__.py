"""The commands of `merganser` that need a comparison."""
