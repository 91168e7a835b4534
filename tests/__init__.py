"""The tests. Whatever imports a module of theirs lives apart from the user's home from then on."""

from tests.isolation import live_apart

live_apart()
