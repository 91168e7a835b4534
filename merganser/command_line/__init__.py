"""The command `merganser`: what needs no repository, and the way to a repository's own command line."""
