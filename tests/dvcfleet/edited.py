"""A repository whose first stage edits a module of its second."""

# The project asks for modules to be imported once: one from outside, and one that is the repository's own.
PROJECT = """
from dvcfleet.project import AnyRepository
PROJECT = AnyRepository()
PROJECT.preload = ("xmlrpc.client", "tasks.work", "flows.words")
"""
EDITED = """
stages:
  first:
    cmd: python -m tasks.first
    deps: [source]
    outs: [first.txt]
  second:
    cmd: python -m tasks.second
    deps: [first.txt, tasks/work.py]
    outs: [second.txt]
"""
EDITED_FILES = {
    "pyproject.toml": '[tool.dvcfleet]\nproject = "edited_project:PROJECT"\n',
    "tasks/__init__.py": "",
    # What the engine once read, and imported when a run began.
    "tasks/stage.py": 'PRELOAD = ("tasks.work",)\n',
    "tasks/work.py": "WORD = 'old'\n",
    # Somebody edits the second stage's module while the first stage runs.
    "tasks/first.py": """
import pathlib, time
time.sleep(1)
work = pathlib.Path("tasks/work.py")
work.write_text(work.read_text().replace("old", "newer"))
pathlib.Path("first.txt").write_text("1")
""",
    "tasks/second.py": """
import pathlib, sys
from tasks.work import WORD
pathlib.Path("second.txt").write_text(f"{WORD} {'xmlrpc.client' in sys.modules}")
""",
    "source": "1",
}
