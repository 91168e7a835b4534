"""A module that declares no project: it cannot be imported."""

raise KeyError("this module cannot be imported")
