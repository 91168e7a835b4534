"""Adapters in PEFT's format, and the changes that each makes to its base.

An adapter is a folder with `adapter_config.json` and its tensors. Low-rank updates and plain values of a parameter are
read without PEFT. It computes everything else, one module at a time. What it cannot merge is refused by name.
"""
