"""Model families: each module builds the networks of one, found by its file name."""
