"""Sounds under a head of their own, against a plain loop over transformers."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from datasets import Audio, Dataset, DatasetDict, Features, List, Value, load_from_disk
from pydantic import ValidationError
from transformers import AutoFeatureExtractor, AutoModelForAudioClassification

from merganser.errors import InputError
from merganser.evaluation import get_kind
from merganser.evaluation.data_sets import check_named_files
from merganser.evaluation.evaluator import Evaluator, open_evaluator
from merganser.evaluation.metrics import METRICS
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.scoring import score_of
from merganser.evaluation.sounds import longest_sound, read_sounds
from merganser.models import open_network
from tests.tiny_sounds import CLASSES, RATE, data_set, encoded, sounds, write_data_set, write_model

KIND = "audio_classification"
COUNT = 16
KINDS = ("wav2vec2", "wav2vec2, layer norm", "hubert", "wavlm", "whisper", "audio-spectrogram-transformer")


def prepared(folder: Path, kind: str, outputs: int, evaluator: Evaluator) -> tuple[Any, Prepared]:
    """Write a model and sounds; give the network, loaded, and what it reads."""
    model = write_model(folder / "model", kind, outputs, seed=1)
    write_data_set(folder / "data", {"test": COUNT})
    network = open_network("audio", folder / "model", outputs=evaluator.outputs(evaluator.classes(folder / "data")))
    network.load(model.state_dict().items())
    (folder / "prepared").mkdir()
    evaluator.prepare(folder / "data", "test", network, folder / "prepared")
    return network, Prepared(folder / "prepared")


def plain_logits(model: Path, data: Path, seconds: float = 30) -> tuple[torch.Tensor, list[int]]:
    """Score a data set's sounds one by one with transformers; give the labels too."""
    loaded, extractor = (
        AutoModelForAudioClassification.from_pretrained(model),
        AutoFeatureExtractor.from_pretrained(model),
    )
    rows = load_from_disk(data)["test"].cast_column("audio", Audio(decode=False))
    found = []
    for row in rows:
        sound, rate = soundfile.read(io.BytesIO(row["audio"]["bytes"]))
        inputs = extractor(sound[: int(seconds * rate)], sampling_rate=rate, return_tensors="pt")
        with torch.inference_mode():
            found.append(loaded.eval()(**inputs).logits)
    return torch.cat(found), list(rows["label"])


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_a_plain_loop_of_transformers_one_sound_at_a_time(kind: str, tmp_path: Path) -> None:
    evaluator = open_evaluator(KIND, {}, None)
    network, data = prepared(tmp_path, kind, 3, evaluator)
    expected, labels = plain_logits(tmp_path / "model", tmp_path / "data")
    alone = [network.logits(data.rows(network.inputs(), [number])) for number in range(COUNT)]
    assert torch.equal(torch.cat(alone), expected)
    results = evaluator.results(network, data, batch_size=7)
    predictions = expected.argmax(dim=1).tolist()
    assert np.asarray(results.prediction).tolist() == predictions
    assert len(set(predictions)) > 1
    for metric in get_kind(KIND).METRICS:
        found = open_evaluator(KIND, {}, metric).results(network, data, batch_size=7)
        assert score_of(metric, found)["value"] == METRICS[metric].compute(predictions, labels, None)


def test_masked_outputs_are_no_classes_and_long_sounds_are_cut(tmp_path: Path) -> None:
    evaluator = open_evaluator(KIND, {"masked": [1, 4], "max_seconds": 0.2}, None)
    network, data = prepared(tmp_path, "wav2vec2", 5, evaluator)
    expected, _ = plain_logits(tmp_path / "model", tmp_path / "data", seconds=0.2)
    results = evaluator.results(network, data, batch_size=7)
    assert np.asarray(results.prediction).tolist() == expected[:, [0, 2, 3]].argmax(dim=1).tolist()
    assert data.array("input_values").shape[1] == data.array("length").max() == 3200
    assert len(data.array("length").unique()) > 3


def test_class_scores_are_differentiable_in_the_head_too(tmp_path: Path) -> None:
    evaluator = open_evaluator(KIND, {"masked": [0]}, None)
    network, data = prepared(tmp_path, "hubert", 4, evaluator)
    names = (
        "classifier.weight",
        "projector.weight",
        "hubert.encoder.pos_conv_embed.conv.parametrizations.weight.original1",
    )
    given = {name: network.module.get_parameter(name).detach().clone().requires_grad_() for name in names}
    scores = evaluator.class_logits(network, data, given, [3, 0, 1])
    expected, _ = plain_logits(tmp_path / "model", tmp_path / "data")
    torch.testing.assert_close(scores.detach(), expected[[3, 0, 1], 1:])
    scores[:, 0].sum().backward()
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in given.values())


def test_numbers_with_their_rate_score_as_their_files_do(tmp_path: Path) -> None:
    drawn = sounds(4)
    rows = Dataset.from_dict({"audio": drawn, "sampling_rate": [RATE] * 4})
    kept = [sound for chunk in read_sounds(rows, RATE, 30) for sound in chunk]
    filed = [
        sound
        for chunk in read_sounds(data_set([encoded(each) for each in drawn], [0] * 4), RATE, 30)
        for sound in chunk
    ]
    assert all(np.array_equal(one, other) and one.dtype == np.float32 for one, other in zip(kept, filed, strict=True))
    assert all(np.array_equal(one, other) for one, other in zip(kept, drawn, strict=True))
    doubles = rows.cast_column("audio", List(Value("float64")))
    assert np.array_equal(next(read_sounds(doubles, RATE, 30))[3], drawn[3])
    assert longest_sound(rows, RATE, 30) == max(map(len, drawn))
    assert longest_sound(rows, RATE, 0.05) == 800
    same = Dataset.from_dict({"audio": [drawn[0]] * 3, "sampling_rate": [RATE] * 3}).select([2, 0])
    assert [len(sound) for sound in next(read_sounds(same, RATE, 30))] == [len(drawn[0])] * 2


def test_several_channels_are_averaged(tmp_path: Path) -> None:
    one, two = (each / 2 for each in sounds(2))
    (sound,) = next(read_sounds(data_set([encoded(np.stack([one, two], axis=1), "FLAC")], [0]), RATE, 30))
    stored, _ = soundfile.read(io.BytesIO(encoded(np.stack([one, two], axis=1), "FLAC")), dtype="float32")
    assert np.array_equal(sound, stored.mean(axis=1))
    with pytest.raises(InputError, match="a sound of 9 channels; save at most 8"):
        longest_sound(data_set([encoded(np.zeros((200, 9)))], [0]), RATE, 30)


def damaged(file: bytes) -> bytes:
    return file[: len(file) // 2]


def promising(file: bytes, frames: int) -> bytes:
    """Return a FLAC whose header promises so many frames: 36 bits from the 22nd byte's half on."""
    rest = struct.unpack(">Q", file[18:26])[0] >> 36 << 36
    return file[:18] + struct.pack(">Q", rest | frames) + file[26:]


FLAC = encoded(sounds(1)[0], "FLAC")
REFUSED: dict[str, tuple[bytes | None, str]] = {
    "another rate": (
        encoded(sounds(1)[0], rate=44100),
        r"example 1 has 44100 samples a second, the model reads 16000; res",
    ),
    "none": (None, r"example 1 has no sound in the column 'audio'"),
    "nothing in it": (encoded(np.zeros(0)), r"example 1 has no sound"),
    "another format": (
        encoded(sounds(1)[0], "OGG"),
        "example 1: its sound cannot be read: it is not WAV or FLAC; save it",
    ),
    "a lossy WAV": (encoded(sounds(1)[0], subtype="IMA_ADPCM"), "it is a WAV of IMA_ADPCM, which programs decode diff"),
    "a bare header": (FLAC[:20], "example 1: its sound cannot be read"),
    "half of a FLAC": (damaged(FLAC), r"example 1: its sound (is damaged|ends after)"),
    "more than there is": (
        promising(FLAC, 2**35),
        r"example 1: its sound (is damaged|ends after \d+ of 480000 samples)",
    ),
    "NaN": (encoded(np.full(400, np.nan), subtype="FLOAT"), "example 1 has a sound with NaN"),
    "too short": (
        encoded(np.zeros(60)),
        "Wav2Vec2ForSequenceClassification cannot read a sound of 60 samples ",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_sound_of_the_models_rate_is_refused_by_its_number(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, said = REFUSED[case]
    write_model(tmp_path, "wav2vec2")
    network: Any = open_network("audio", tmp_path)
    rows = data_set([encoded(sounds(1)[0]), file], [0, 1])
    with pytest.raises(InputError, match=said):
        list(get_kind(KIND).prepare(rows, get_kind(KIND).Settings(), network))


def test_a_header_that_promises_gigabytes_takes_no_more_than_the_longest_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    empty = np.empty
    monkeypatch.setattr(
        np, "empty", lambda shape, *args, **kwargs: (made.append(int(np.prod(shape))), empty(shape, *args, **kwargs))[1]
    )
    rows = data_set([promising(FLAC, 2**35)], [0])
    assert longest_sound(rows, RATE, 1) == RATE
    with pytest.raises(InputError, match="example 0: its sound"):
        list(read_sounds(rows, RATE, 1))
    assert max(made) <= RATE


def test_a_streamed_flac_that_promises_no_length_is_refused() -> None:
    with pytest.raises(InputError, match="example 0: the header of its sound does not say how long it is"):
        longest_sound(data_set([promising(FLAC, 0)], [0]), RATE, 30)


def test_a_cast_column_keeps_the_bytes_on_disk_and_is_refused_by_the_files_own_rate(tmp_path: Path) -> None:
    data_set([encoded(sounds(1)[0], rate=8000)], [0]).cast_column("audio", Audio(sampling_rate=RATE)).save_to_disk(
        tmp_path
    )
    with pytest.raises(InputError, match="example 0 has 8000 samples a second"):
        longest_sound(load_from_disk(tmp_path), RATE, 30)


def test_a_file_that_is_only_named_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "own.wav").write_bytes(encoded(sounds(1)[0]))
    rows = data_set([None], [0], path=str(tmp_path / "own.wav"))
    with pytest.raises(InputError, match="only names the file"):
        check_named_files({"test": rows}, tmp_path)
    with pytest.raises(InputError, match="example 0 has no sound"):
        list(read_sounds(rows, RATE, 30))


def test_a_sound_without_a_label_is_refused_where_it_would_count_as_a_mistake(tmp_path: Path) -> None:
    evaluator = open_evaluator(KIND, {}, None)
    network, _ = prepared(tmp_path, "wav2vec2", 3, evaluator)
    rows = data_set([encoded(sound) for sound in sounds(3)], [0, None, 1])
    DatasetDict({"test": rows}).save_to_disk(tmp_path / "some")
    (tmp_path / "others").mkdir()
    evaluator.prepare(tmp_path / "some", "test", network, tmp_path / "others")
    with pytest.raises(InputError, match="example 1 of the data has no label"):
        evaluator.results(network, Prepared(tmp_path / "others"), batch_size=7)


def test_a_data_set_of_another_kind_is_refused_from_its_columns(tmp_path: Path) -> None:
    evaluator = open_evaluator(KIND, {}, None)
    rows = data_set([encoded(sounds(1)[0])], [0])
    evaluator.check_data({"test": rows.select([])}, tmp_path)
    numbers = Dataset.from_dict({"audio": [[0.5]], "label": [0]}).cast_column("label", rows.features["label"])
    features = Features({**numbers.features, "audio": List(Value("int16"))})
    whole = Dataset.from_dict({"audio": [[5]], "label": [0]}, features)
    for wrong, said in (
        (rows.rename_column("audio", "sound"), r"split test has no column 'audio'; it has \['sound', 'label'\]; data"),
        (numbers, "audio holds numbers without their rate; add the column 'sampling_rate'"),
        (whole, "audio is int16; expected Audio or a list of floats"),
        (rows.cast_column("label", Value("int64")), "no class names"),
    ):
        with pytest.raises(InputError, match=said):
            evaluator.check_data({"test": wrong}, tmp_path)
    evaluator.check_head(CLASSES, CLASSES, "task")
    with pytest.raises(InputError, match=r"the head has 4 outputs, the data 3 classes .*; set data\.masked"):
        evaluator.check_head([*CLASSES, "go"], CLASSES, "task")
    for key, value in (("max_seconds", 0), ("max_seconds", 601), ("templates", ["a {}."])):
        with pytest.raises(ValidationError, match=key):
            get_kind(KIND).Settings.model_validate({key: value})


def test_few_long_sounds_are_decoded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("merganser.evaluation.sounds.MOST_SAMPLES", 3 * RATE)
    rows = data_set([encoded(each) for each in sounds(7)], [0] * 7)
    assert [len(chunk) for chunk in read_sounds(rows, RATE, 1)] == [3, 3, 1]
    assert [len(chunk) for chunk in read_sounds(rows, RATE, 30)] == [1] * 7
