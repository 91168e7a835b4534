"""Classifiers of sounds against the models and feature extractors that transformers itself loads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForAudioClassification,
    SpeechT5FeatureExtractor,
    Wav2Vec2ForPreTraining,
    WhisperForConditionalGeneration,
)

from merganser.checkpoints.reading import open_checkpoint
from merganser.config.inferring import family_of, heads_beyond
from merganser.config.tasks import fits
from merganser.errors import InputError
from merganser.evaluation import get_kind, kind_names
from merganser.models import ChangesFeatures, TakesSounds, families_with, get_family, open_network
from tests.tiny_sounds import CONFIGS, RATE, logits_of, sounds, write_model
from tests.tiny_transformers import state_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SOME = ("wav2vec2", "wav2vec2, layer norm", "wavlm", "wav2vec2-bert", "whisper", "audio-spectrogram-transformer")


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Give the folder of a tiny model with three classes, written once."""
    folders: dict[tuple[str, str], Path] = {}

    def written(kind: str, precision: str = "float32") -> Path:
        if (kind, precision) not in folders:
            folders[kind, precision] = tmp_path_factory.mktemp("audio")
            write_model(folders[kind, precision], kind, dtype=DTYPES[precision])
        return folders[kind, precision]

    return written


def loaded(folder: Path, state: dict[str, Tensor] | None = None, precision: Any = "float32") -> Any:
    network = open_network("audio", folder, outputs=3, precision=precision)
    network.load((state or state_of(folder)).items())
    return network


def inputs_of(network: Any, drawn: list[Any]) -> dict[str, Tensor]:
    return network.encode_sounds(drawn, max(map(len, drawn)))  # type: ignore[no-any-return]


def one_of(inputs: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    return {name: value[number : number + 1] for name, value in inputs.items()}


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_sound_scores_alone_as_in_transformers_and_the_same_in_a_batch(
    folder_of: Callable[..., Path], kind: str, precision: str
) -> None:
    folder, drawn = folder_of(kind, precision), sounds(5)
    get_family("audio").check(folder, open_checkpoint(folder))
    network = loaded(folder, precision=precision)
    assert isinstance(network, TakesSounds)
    assert isinstance(network, ChangesFeatures)
    model = AutoModelForAudioClassification.from_pretrained(folder, dtype=DTYPES[precision]).eval()
    for value in model.parameters():  # its own memory, not the file's, for the same order of additions in BLAS
        value.data = value.data.clone()
    expected, inputs = logits_of(model, kind, drawn), inputs_of(network, drawn)
    alone = torch.cat([network.logits(one_of(inputs, number)) for number in range(len(drawn))])
    assert torch.equal(alone, expected)
    tolerance = 1e-6 if precision == "float32" else 0.03 * float(expected.abs().max())
    torch.testing.assert_close(network.logits(inputs), expected, rtol=0, atol=tolerance)
    assert expected.std(dim=0).min() > 1e-3  # each sound has its own


def test_a_batch_that_is_padded_would_score_otherwise(folder_of: Callable[..., Path]) -> None:
    network = loaded(folder_of("wav2vec2"))
    inputs = inputs_of(network, sounds(5))
    padded = network._run({name: value for name, value in inputs.items() if name != "length"})
    assert not torch.allclose(padded, network.logits(inputs), atol=1e-3)


@pytest.mark.parametrize("kind", SOME)
def test_the_head_scores_features_that_no_head_made_as_they_are_changed(
    folder_of: Callable[..., Path], kind: str
) -> None:
    network, state, drawn = loaded(folder_of(kind)), state_of(folder_of(kind)), sounds(5)
    inputs = inputs_of(network, drawn)
    features, plain = network.features(inputs), network.logits(inputs)
    scored = features
    for part in (network._head, network.module.classifier)[kind == "audio-spectrogram-transformer" :]:
        with torch.inference_mode():
            scored = part(scored)
    torch.testing.assert_close(scored, plain)
    with network.changing(lambda seen: seen.roll(1, dims=0)), pytest.raises(AssertionError):
        torch.testing.assert_close(network.logits(inputs), plain)
    with network.changing(lambda seen: seen):
        torch.testing.assert_close(network.logits(inputs), plain)
    other = {
        name: value + 1 if name.split(".")[0] in ("projector", "classifier") else value for name, value in state.items()
    }
    assert torch.equal(loaded(folder_of(kind), other).features(inputs), features)


@pytest.mark.parametrize("kind", SOME)
def test_watched_rows_are_those_of_no_padding_and_of_no_head(folder_of: Callable[..., Path], kind: str) -> None:
    network, state, drawn = loaded(folder_of(kind)), state_of(folder_of(kind)), sounds(3)
    padded, alone = one_of(inputs_of(network, drawn), 2), inputs_of(network, drawn[2:])
    counts = []
    for inputs in (padded, alone):
        rows: dict[str, list[Tensor]] = {}
        with network.watch(lambda name, found, rows=rows: rows.setdefault(name, []).append(found) and None):
            network.features(inputs)
        counts.append({name: sum(map(len, found)) for name, found in rows.items()})
    assert counts[0] == counts[1]
    assert set(rows) == set(network.linear_maps())
    assert {name: state[name].shape[1:].numel() for name in rows} == {name: rows[name][0].shape[1] for name in rows}
    assert not any(name.startswith(("classifier", "projector")) for name in rows)


@pytest.mark.parametrize("kind", SOME)
def test_gradients_reach_every_parameter(folder_of: Callable[..., Path], kind: str) -> None:
    network, state = loaded(folder_of(kind)), state_of(folder_of(kind))
    given = {name: value.clone().requires_grad_() for name, value in state.items()}
    inputs = inputs_of(network, sounds(4))
    scores = network.forward(given, inputs)
    scores.log_softmax(dim=1)[:, 0].sum().backward()
    still = {name for name, value in given.items() if value.grad is None or not value.grad.abs().sum() > 0}
    assert {
        name for name in still if not name.endswith(("masked_spec_embed", "k_proj.bias", "key.bias", "linear_k.bias"))
    } == set()
    torch.testing.assert_close(scores.detach(), network.logits(inputs))


@pytest.mark.parametrize("kind", SOME)
def test_a_trunk_without_a_head_is_a_base(folder_of: Callable[..., Path], kind: str, tmp_path: Path) -> None:
    folder = folder_of(kind)
    AutoModel.from_pretrained(folder).save_pretrained(tmp_path)
    get_family("audio").check(tmp_path, open_checkpoint(tmp_path))
    assert family_of(tmp_path) == family_of(folder) == "audio"
    head = [
        f"{name}.*" for name in ("classifier", "projector") if any(each.startswith(name) for each in state_of(folder))
    ]
    assert heads_beyond(tmp_path, [folder, folder]) == head


def test_names_of_older_files_and_what_only_the_pretraining_reads_are_known(
    folder_of: Callable[..., Path], tmp_path: Path
) -> None:
    state = state_of(folder_of("wav2vec2"))
    place = "wav2vec2.encoder.pos_conv_embed.conv."
    old = {
        f"{place}parametrizations.weight.original0": f"{place}weight_g",
        f"{place}parametrizations.weight.original1": f"{place}weight_v",
    }
    assert set(old) < set(state)
    renamed = {old.get(name, name): value for name, value in state.items()}
    drawn = sounds(3)
    network, other = loaded(folder_of("wav2vec2")), loaded(folder_of("wav2vec2"), renamed)
    inputs = inputs_of(network, drawn)
    assert torch.equal(other.logits(inputs), network.logits(inputs))
    moved = other.forward({f"{place}weight_v": renamed[f"{place}weight_v"].flip(0)}, inputs)
    assert not torch.allclose(moved, network.logits(inputs), atol=1e-3)
    Wav2Vec2ForPreTraining(CONFIGS["wav2vec2"]()).save_pretrained(tmp_path)
    get_family("audio").check(tmp_path, open_checkpoint(tmp_path))
    with pytest.raises(InputError, match=r"parameter odd is not in the architecture .*Wav2Vec2ForSequence"):
        loaded(folder_of("wav2vec2"), state | {"odd": torch.ones(2)})
    missing = {name: value for name, value in state.items() if name != f"{place}bias"}
    with pytest.raises(InputError, match=rf"parameter {place}bias of the architecture is missing"):
        loaded(folder_of("wav2vec2"), missing)


def test_a_whole_whisper_is_a_base_of_its_encoder(folder_of: Callable[..., Path], tmp_path: Path) -> None:
    config = CONFIGS["whisper"]()
    WhisperForConditionalGeneration(config).save_pretrained(tmp_path)
    assert family_of(tmp_path) == "audio"
    get_family("audio").check(tmp_path, open_checkpoint(tmp_path))
    head = {name: value for name, value in state_of(folder_of("whisper")).items() if not name.startswith("encoder.")}
    network = open_network("audio", tmp_path, outputs=3)
    network.load((state_of(tmp_path) | head).items())


def test_the_family_does_sounds_alone_and_every_type_is_tried() -> None:
    assert {make().model_type for make in CONFIGS.values()} == set(get_family("audio").MODEL_TYPES)
    assert families_with(TakesSounds) == ["audio"]
    assert [name for name in kind_names() if fits(get_kind(name), "audio")] == ["audio_classification", "unmeasured"]


EXTRACTOR = "preprocessor_config.json"
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "dither": ({"dither": 0.1}, "dither adds noise to each sound; set it to 0"),
    "a huge table": ({"n_fft": 2**20}, "n_fft is 1048576, not 1 to 8192"),
    "hours": ({"chunk_length": 10**6}, "chunk_length is 1000000, not 1 to 600"),
    "code": ({"auto_map": {"AutoFeatureExtractor": "own.Mine"}}, "such code is never run"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_feature_extractor_that_is_huge_or_random_is_refused(
    folder_of: Callable[..., Path], case: str, tmp_path: Path
) -> None:
    changed, said = CHANGES[case]
    for name in ("config.json", EXTRACTOR):
        (tmp_path / name).write_bytes((folder_of("whisper") / name).read_bytes())
    content = json.loads((tmp_path / EXTRACTOR).read_text())
    (tmp_path / EXTRACTOR).write_text(json.dumps(content | changed))
    with pytest.raises(InputError, match=said):
        open_network("audio", tmp_path).sampling_rate()  # type: ignore[attr-defined]


def test_other_and_missing_feature_extractors_and_heads_of_all_layers_are_refused(
    folder_of: Callable[..., Path], tmp_path: Path
) -> None:
    config = json.loads((folder_of("wav2vec2") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    network: Any = open_network("audio", tmp_path)
    with pytest.raises(InputError, match=r"cannot make the feature extractor: .*preprocessor_config\.json"):
        network.sampling_rate()
    SpeechT5FeatureExtractor().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="SpeechT5FeatureExtractor is not one of Wav2Vec2, Whisper"):
        network.sampling_rate()
    (tmp_path / "config.json").write_text(json.dumps(config | {"use_weighted_layer_sum": True}))
    with pytest.raises(InputError, match="use_weighted_layer_sum: the head reads every layer"):
        open_network("audio", tmp_path)


def test_an_extractor_in_the_files_of_a_processor_is_read_and_other_lengths_are_refused(
    folder_of: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((folder_of("whisper") / "config.json").read_bytes())
    own = json.loads((folder_of("whisper") / EXTRACTOR).read_text())
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": own}))
    network: Any = open_network("audio", tmp_path)
    assert network.sampling_rate() == RATE
    assert network.inputs() == ["input_features", "length"]
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"feature_extractor": own | {"chunk_length": 2, "n_samples": 32000}})
    )
    longer: Any = open_network("audio", tmp_path)
    with pytest.raises(
        InputError, match=r"WhisperForAudioClassification cannot read a sound of .*expects the mel input"
    ):
        inputs_of(longer, sounds(2))


def test_a_sound_too_short_for_its_mean_by_frames_is_refused(folder_of: Callable[..., Path]) -> None:
    network = loaded(folder_of("wav2vec2-bert"))
    for size in (100, 450):
        with pytest.raises(InputError, match=f"cannot read a sound of {size} samples"):
            inputs_of(network, [sounds(1)[0][:size], sounds(1)[0]])
