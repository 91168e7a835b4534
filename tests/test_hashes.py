"""The digest of a file from what is read of it: the same in any order, and without reading again what came in order."""

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merganser.errors import InputError
from merganser.hashes import ReadDigest

CONTENT = bytes(range(251)) * 4


class SmallDigest(ReadDigest):
    """One that keeps few bytes that come early."""

    AHEAD = 64


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(CONTENT) - 1), st.integers(0, 300)), max_size=30))
def test_reads_in_any_order_with_gaps_and_overlaps_give_the_files_sha256(reads: list[tuple[int, int]]) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        file.write_bytes(CONTENT)
        digest = SmallDigest(file)
        for start, count in reads:
            digest.take(start, memoryview(CONTENT[start : start + count]))
        assert digest.hexdigest() == hashlib.sha256(CONTENT).hexdigest()


def test_what_came_in_order_or_a_little_early_is_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(len(CONTENT)))  # other bytes: reading them would show
    digest = SmallDigest(file)
    for start, end in ((0, 100), (150, 200), (100, 150), (200, len(CONTENT))):
        digest.take(start, memoryview(CONTENT[start:end]))
    assert digest.hexdigest() == hashlib.sha256(CONTENT).hexdigest()


def test_a_file_that_becomes_shorter_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(CONTENT[:10])
    digest = SmallDigest(file)
    with pytest.raises(InputError, match="file: became shorter while it was read; merge again"):
        digest.take(500, memoryview(CONTENT[500:600]))
