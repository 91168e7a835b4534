"""Convert mergekit's configurations into merges by Merganser."""
