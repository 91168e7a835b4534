"""Data sets with sounds in the column `audio`: WAV or FLAC files as `datasets` saves them, or samples as numbers.

Numbers need the column `sampling_rate`. soundfile decodes bytes of the data set alone: a file given by name is never
opened, and a header's claims are checked against the limit before reading.
"""

import io
from collections.abc import Iterator, Mapping
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from merganser.errors import InputError, refusing
from merganser.evaluation.columns import RENAMED, check_column, type_of

AUDIO, RATE = "audio", "sampling_rate"
Sound = NDArray[np.float32]
CHUNK, MOST_SAMPLES = 32, 2**24  # sounds decoded at a time, and samples of all of them
UNKNOWN = 2**62  # frames, at least, where a header does not say how many: of a file that was streamed
MOST_CHANNELS = 8  # of a file, as FLAC has at most
FORMATS = "WAV or FLAC"
EXACT = ("PCM_", "FLOAT", "DOUBLE", "ULAW", "ALAW")  # how what a WAV may hold is called that all programs decode alike


def check_sounds(splits: Mapping[str, Any], source: Path) -> None:
    """Refuse a data set without a column `audio` of sounds."""
    from datasets import Audio

    for split, rows in splits.items():
        check_column(rows, AUDIO, f"{source}: split {split}", RENAMED)
        feature = rows.features[AUDIO]
        if isinstance(feature, Audio):
            continue
        kind = type_of(getattr(feature, "feature", feature))
        if kind not in ("float32", "float64"):
            raise InputError(f"{source}: split {split}: {AUDIO} is {kind}; expected Audio or a list of floats")
        if RATE not in rows.column_names:
            remedy = f"add the column {RATE!r}, of samples a second"
            raise InputError(f"{source}: split {split}: {AUDIO} holds numbers without their rate; {remedy}")


def longest_sound(rows: Any, rate: int, seconds: float) -> int:
    """Return the number of samples of the longest sound, at most those of so many seconds, by headers alone.

    Raises InputError naming the first example that is no sound of this rate.
    """
    most, sizes = ceil(rate * seconds), [0]
    for number, value, own_rate in _values(rows):
        sizes.append(_size(value, own_rate, number, rate))
    return min(most, max(sizes))


def read_sounds(rows: Any, rate: int, seconds: float) -> Iterator[list[Sound]]:
    """Yield a split's sounds, cut after so many seconds: float32 (samples,) each.

    Channels are averaged, as librosa does. Raises InputError for a sound that cannot be decoded.
    """
    most, chunk = ceil(rate * seconds), list[Sound]()
    size = min(CHUNK, MOST_SAMPLES // most)
    for number, value, own_rate in _values(rows):
        _size(value, own_rate, number, rate)
        sound = _decoded(value, number, most) if isinstance(value, bytes) else value[:most]
        if not np.isfinite(sound).all():
            raise InputError(f"example {number} has a sound with NaN or infinite samples; leave it out")
        chunk.append(sound)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _values(rows: Any) -> Iterator[tuple[int, Any, Any]]:
    """Yield each example's number, the bytes of its file or its samples, and its declared rate."""
    from datasets import Audio

    if isinstance(rows.features[AUDIO], Audio):  # as bytes: `datasets` itself would decode by another library
        encoded = rows.select_columns([AUDIO]).cast_column(AUDIO, Audio(decode=False))
        yield from ((number, (row[AUDIO] or {}).get("bytes"), None) for number, row in enumerate(encoded))
        return
    plain = rows.select_columns([AUDIO, RATE]).with_format("numpy", columns=[AUDIO], output_all_columns=True)
    for number, row in enumerate(plain):
        yield number, None if row[AUDIO] is None else np.asarray(row[AUDIO], dtype=np.float32), row[RATE]


def _size(value: Any, own_rate: Any, number: int, rate: int) -> int:
    """Return a sound's number of samples, by its header; raise InputError for another rate, or none."""
    channels, size = 1, 0 if value is None else len(value)
    if isinstance(value, bytes):
        with _opened(value, number) as file:
            own_rate, channels, size = file.samplerate, file.channels, file.frames
    if size <= 0:
        raise InputError(f"example {number} has no sound in the column {AUDIO!r}; leave it out")
    if size >= UNKNOWN:
        raise InputError(f"example {number}: the header of its sound does not say how long it is; save it again")
    if own_rate != rate:
        what = f"example {number} has {own_rate} samples a second, the model reads {rate}"
        how = f"resample it, as by librosa.resample, and save the numbers with a column {RATE!r}"
        raise InputError(f"{what}; {how} (cast_column alone changes nothing on disk)")
    if channels > MOST_CHANNELS:
        raise InputError(f"example {number} has a sound of {channels} channels; save at most {MOST_CHANNELS}")
    return int(size)


def _opened(encoded: bytes, number: int) -> Any:
    """Open the bytes of a sound file; raise InputError for another format, or a damaged file."""
    from soundfile import SoundFile, SoundFileError

    what, remedy = f"example {number}: its sound cannot be read", f"save it as {FORMATS}"
    if not (encoded.startswith(b"fLaC") or (encoded.startswith(b"RIFF") and encoded[8:12] == b"WAVE")):
        raise InputError(f"{what}: it is not {FORMATS}; {remedy}")
    with refusing(what, remedy, SoundFileError):
        file = SoundFile(io.BytesIO(encoded))
    if not file.subtype.startswith(EXACT):
        raise InputError(f"{what}: it is a WAV of {file.subtype}, which programs decode differently; {remedy}")
    return file


def _decoded(encoded: bytes, number: int, most: int) -> Sound:
    """Decode a file's first samples (most,), averaged over channels; raise InputError if the file ends earlier."""
    from soundfile import SoundFileError

    damaged = refusing(f"example {number}: its sound is damaged", "leave it out", SoundFileError)
    with damaged, _opened(encoded, number) as file:
        wanted = min(most, file.frames)
        samples: Sound = file.read(wanted, dtype="float32", always_2d=True)
    if len(samples) < wanted:
        raise InputError(f"example {number}: its sound ends after {len(samples)} of {wanted} samples; leave it out")
    return samples.mean(axis=1) if samples.shape[1] > 1 else samples[:, 0]
