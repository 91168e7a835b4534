"""SigLIP of transformers against transformers' own model, processor and tokenizer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoImageProcessor, AutoTokenizer, SiglipModel, SiglipTokenizer, SiglipVisionModel

from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.models import EmbedsTexts, TakesImages, get_family, open_network
from tests.tiny_transformers import noise, state_of, write_model

PROMPTS = [["a dark image .", "dark"], ["a light image of the cat on the mat .", "light"], ["a red image ."]]
TEXTS = [text for prompts in PROMPTS for text in prompts]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LENGTH = 32  # of the tiny model's texts


@pytest.fixture(scope="module", params=[("input_ids",), ("input_ids", "attention_mask")], ids=["plain", "masked"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a tiny model whose tokenizer gives no mask, as those on the hub do, or gives one."""
    path = tmp_path_factory.mktemp("siglip")
    write_model(path, "siglip")
    settings = path / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_input_names": list(request.param)}))
    return path


def loaded(folder: Path, precision: Any = "float32") -> Any:
    network = open_network("siglip", folder, precision=precision)
    network.load(state_of(folder).items())
    return network


def theirs_on(folder: Path, images: list[Any], texts: list[str], precision: str = "float32") -> tuple[Any, Any]:
    """Give transformers' model, and what it makes of pictures and of texts that are padded to its length."""
    model = SiglipModel.from_pretrained(folder, dtype=DTYPES[precision]).eval()
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor(images, return_tensors="pt").pixel_values.to(DTYPES[precision])
    tokens = AutoTokenizer.from_pretrained(folder)(
        texts, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt"
    )
    with torch.inference_mode():
        return model, model(**tokens, pixel_values=pixels)


@pytest.mark.parametrize("precision", DTYPES)
def test_with_a_prompt_a_class_the_logits_are_those_of_transformers(folder: Path, precision: str) -> None:
    ours, images = loaded(folder, precision), noise(5, (20, 30))
    assert isinstance(ours, TakesImages)
    assert isinstance(ours, EmbedsTexts)
    _, whole = theirs_on(folder, images, TEXTS, precision)
    ours.head([[text] for text in TEXTS])
    logits = ours.logits({"pixels": ours.pixels(images)})
    exact = precision == "float32"
    torch.testing.assert_close(
        logits, whole.logits_per_image, rtol=1e-5 if exact else 2e-2, atol=1e-6 if exact else 2e-2
    )
    if exact:
        torch.testing.assert_close(ours.features({"pixels": ours.pixels(images)}), whole.image_embeds)
        torch.testing.assert_close(ours.embed(TEXTS), whole.text_embeds)


def test_a_class_of_several_prompts_has_their_mean_direction_and_scale_and_bias_change_no_answer(folder: Path) -> None:
    ours, images = loaded(folder), noise(40, (20, 30))
    theirs, whole = theirs_on(folder, images, TEXTS)
    with torch.inference_mode():
        means = torch.stack([group.mean(0) for group in whole.text_embeds.split([2, 2, 1])])
        cosines = whole.image_embeds @ (means / means.norm(dim=-1, keepdim=True)).T
        expected = cosines * theirs.logit_scale.exp() + theirs.logit_bias
    ours.head(PROMPTS)
    logits = ours.logits({"pixels": ours.pixels(images)})
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)
    assert abs(float(theirs.logit_bias.detach())) > 1e-2
    assert torch.equal(logits.argsort(dim=1), cosines.argsort(dim=1))


@pytest.mark.parametrize("size", [(16, 16), (37, 20), (9, 30)])
def test_prepared_pixels_are_bit_for_bit_the_processors(folder: Path, size: tuple[int, int]) -> None:
    images, ours = noise(3, size), loaded(folder)
    expected = AutoImageProcessor.from_pretrained(folder, backend="pil")(images, return_tensors="pt").pixel_values
    prepared = ours.pixels(images)
    assert prepared.dtype == torch.uint8
    assert torch.equal(ours._normalised({"pixels": prepared}), expected)
    torch.testing.assert_close(expected, prepared / 127.5 - 1, rtol=0, atol=1e-6)  # mean and deviation one half
    assert torch.equal(prepared, ours.pixels([np.asarray(image) for image in images]))


def test_texts_are_tokenised_as_siglips_own_tokenizer_does_and_padded_to_the_models_length(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    write_model(tmp_path, "siglip")
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 9),
        model_prefix=str(tmp_path / "spiece"),
        vocab_size=30,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"pad_id": -1, "unk_id": 2, "bos_id": -1, "eos_id": 1},
    )
    SiglipTokenizer(str(tmp_path / "spiece.model"), model_input_names=["input_ids"]).save_pretrained(tmp_path)
    ours = loaded(tmp_path)
    _, whole = theirs_on(tmp_path, noise(1, (16, 16)), TEXTS)
    torch.testing.assert_close(ours.embed(TEXTS), whole.text_embeds)
    # it knows no capitals and no punctuation; a text has one embedding, whatever it stands beside
    torch.testing.assert_close(ours.embed(["A Dark, image!"]), ours.embed(["a dark image", *TEXTS])[:1])
    shown = ours._tokenizer(["dark"], padding="max_length", max_length=LENGTH).input_ids[0]
    assert len(shown) == LENGTH
    assert shown[-1] == ours._tokenizer.eos_token_id


def test_the_vision_side_of_a_task_is_taken_on_the_bases_text_side(folder: Path, tmp_path: Path) -> None:
    tuned = SiglipVisionModel.from_pretrained(folder)
    with torch.no_grad():
        for value in tuned.parameters():
            value.add_(0.05)
    tuned.save_pretrained(tmp_path)
    saved = state_of(tmp_path)
    plain = {name.removeprefix("vision_model."): value for name, value in saved.items()}
    network = loaded(folder)
    network.head(PROMPTS)
    inputs = {"pixels": network.pixels(noise(4, (16, 16)))}
    base = network.logits(inputs)
    both = [network.forward(state, inputs) for state in (saved, plain)]
    assert torch.equal(*both)
    assert not torch.allclose(both[0], base, atol=1e-3)
    whole = {f"vision_model.{name}": value for name, value in plain.items()}
    network.load((state_of(folder) | whole).items())
    network.head(PROMPTS)
    torch.testing.assert_close(network.logits(inputs), both[0].detach())
    for configured in (folder, tmp_path):
        get_family("siglip").check(configured, open_checkpoint(tmp_path))
    with pytest.raises(InputError, match="the vision side alone; as a base take the whole model"):
        open_network("siglip", tmp_path)


def test_watching_gives_the_rows_of_the_image_sides_maps_but_for_the_fused_one_of_the_pooling_head(
    folder: Path,
) -> None:
    network, rows = loaded(folder), dict[str, list[Tensor]]()
    inputs, state = {"pixels": network.pixels(noise(3, (20, 20)))}, state_of(folder)
    with network.watch(lambda name, seen: rows.setdefault(name, []).append(seen)):
        network.features(inputs)
    assert set(rows) == set(network.linear_maps())
    matrices = {name for name, value in state.items() if name.startswith("vision_model.") and value.dim() in (2, 4)}
    fused, places = "vision_model.head.attention.in_proj_weight", "vision_model.embeddings.position_embedding.weight"
    assert matrices - set(rows) == {fused, places}
    pooled = torch.cat(rows["vision_model.head.mlp.fc2.weight"]) @ state["vision_model.head.mlp.fc2.weight"].T
    assert pooled.shape == (3, 16)


def test_gradients_of_the_logits_reach_all_of_the_image_side(folder: Path) -> None:
    network = loaded(folder)
    network.head(PROMPTS)
    given = {
        name: value.clone().requires_grad_() for name, value in state_of(folder).items() if name.startswith("vision_")
    }
    network.forward(given, {"pixels": network.pixels(noise(2, (16, 16)))}).log_softmax(dim=1)[:, 0].sum().backward()
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in given.values())
    assert all(parameter.grad is None for parameter in network.module.parameters())
