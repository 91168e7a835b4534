"""The DVC adapter: all uses of DVC's internals, which its public API does not cover."""
