"""Output and exit of commands: standard streams, masked credentials, errors as one line with an exit code.

The library and the engine, `dvcfleet`, share it and import nothing from each other: `dvcfleet/terminal` is a link to
this folder. So it imports only Python's own modules and its own, by relative names.
"""
