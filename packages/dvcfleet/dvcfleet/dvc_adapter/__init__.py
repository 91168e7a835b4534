"""The DVC adapter: all uses of DVC's internals that its public API does not cover."""
