"""`python -m merganser.flows` is `merganser`, with the code of the current folder."""

from functools import partial

from dvcfleet.__main__ import start as start_command
from merganser.flows.commands.cli import main

start = partial(start_command, main)

if __name__ == "__main__":
    start()
