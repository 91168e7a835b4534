"""Python up to 3.11.8 deadlocks where it collects garbage while it lists the threads' frames, as Dask has it do."""

import subprocess
import sys

LISTS = """
import gc, sys, threading
from dvcfleet.runners.dask.frames import collect_no_garbage_while_listing_frames

python_s = sys._current_frames
if sys.argv[1:]:
    collect_no_garbage_while_listing_frames()
    listing = sys._current_frames
    collect_no_garbage_while_listing_frames()
    assert sys._current_frames is listing
collections, seen, end = [], [], threading.Event()
for _ in range(5):  # whose frames Python makes objects of when it lists them first
    threading.Thread(target=end.wait).start()
gc.callbacks.append(lambda phase, about: collections.append(phase))
sys.setprofile(lambda frame, event, called: called is python_s and seen.append(len(collections)))
gc.set_threshold(1)
sys._current_frames()
sys.setprofile(None)
gc.set_threshold(0)
end.set()
assert gc.isenabled()
gc.disable()
sys._current_frames()
assert not gc.isenabled()
print(seen[1] - seen[0])
"""


def collections_meanwhile(*words: str) -> int:
    """How often garbage was collected inside a call of Python's own function."""
    done = subprocess.run([sys.executable, "-c", LISTS, *words], check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout)


def test_no_garbage_is_collected_while_frames_are_listed() -> None:
    assert sys.version_info >= (3, 11, 9) or collections_meanwhile() > 0  # the fault is there to be mended
    assert collections_meanwhile("mended") == 0
