"""Commands and their machine: streams, masked credentials, errors as one line with an exit code, CPUs and memory.

The library and the engine, `dvcfleet`, share it and import nothing from each other: `dvcfleet/terminal` is a link to
this folder. So it imports only Python's own modules, psutil and its own, by relative names.
"""
