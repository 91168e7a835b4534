"""Merging: what a method is, the driver that walks the layers, devices, model cards."""
