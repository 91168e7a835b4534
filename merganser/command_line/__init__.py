"""The command `merganser`: commands that need no repository, and the start of a repository's own command line."""
