"""Adapters in PEFT's format: what each does to its base.

An adapter is a folder with `adapter_config.json` and its tensors. Low-rank updates are kept as left @ right and read
without PEFT, as are plain values for a parameter. All else PEFT computes, a module at a time. What it cannot merge is
refused by name.
"""
