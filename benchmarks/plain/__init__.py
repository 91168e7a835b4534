"""Merges as the papers' public scripts do them: each formula on whole state dicts, in float32, by `torch.linalg.svd`.

What Merganser's merges are measured against. They share its rule of what is a matrix, and no other code. Each holds all
task vectors in memory, in dictionaries by parameter, and gives up what it no longer needs, as a careful author would.
"""
