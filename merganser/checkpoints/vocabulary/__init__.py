"""Merge models with different vocabularies: rows of embeddings and heads are matched by token.

`plan` chooses the merge's tokens and matches each model's rows with them; `writing` writes the models in that
vocabulary.
"""
