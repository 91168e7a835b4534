"""`python -m flows` is `merganser`, with the code of the folder it is run in."""

from flows.cli import main

main()
