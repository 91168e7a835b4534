"""The DVC adapter: everything that DVC does not promise."""
