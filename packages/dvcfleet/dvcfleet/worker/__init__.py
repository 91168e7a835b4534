"""The worker of a stage: it runs the stage's commands in separate processes."""

import sys

# In a fork server, which begins with this package: the modules that every interpreter has loaded when it starts.
LOADED_AT_START = frozenset(sys.modules)
