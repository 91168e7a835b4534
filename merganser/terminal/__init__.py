"""How a command speaks and ends: standard streams, credentials that are masked, errors as one line and an exit code.

The library and the engine, `dvcfleet`, share it and import nothing of each other: `dvcfleet/terminal` is a link to this
folder, so it imports Python's own modules and its own, by relative names.
"""
