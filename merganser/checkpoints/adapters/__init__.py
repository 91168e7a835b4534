"""LoRA adapters in PEFT's format: what each does to its base, kept as left @ right.

An adapter is a folder with `adapter_config.json` and its tensors. What cannot be written as W + left @ right, or as
plain values for a parameter, is refused by name.
"""
