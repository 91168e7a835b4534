"""Miniatures of the repositories that the suites of real models name: their files, names and columns, two layers.

What a repository holds is written down here from public descriptions, never taken from the suites' own pointers and
params.yaml: a suite that names a wrong split, column or number of classes is refused by its miniature.
"""
