"""Merge models of other vocabularies: the rows of their embeddings and heads are matched by token.

`plan` says what a merge's tokens are and which row of each model is which, `writing` brings the models into it.
"""
