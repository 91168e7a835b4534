"""Adapters of models whose embedding is tied, and of more tokens: each is the model that PEFT has, or refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from merganser.checkpoints.kinds import ParameterRules
from merganser.errors import InputError
from tests.merges import merge_checkpoints
from tests.transformers_models import VOCABULARY, load, tiny

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
EMBEDDING, HEAD = "embed_tokens", "lm_head"
TOKENS = torch.arange(8)[None]
COPIES = {"save_embedding_layers": True}
ONE_WEIGHT = (
    r"lm_head\.weight is not a separate weight in the base: it is tied to model\.embed_tokens.*--except 'lm_head"
)
OF_THE_INPUT = (
    r"the adapter's model\.embed_tokens\.weight is for the input alone.*--except 'model\.embed_tokens\.weight'"
)


def adapted(folder: Path, name: str, grown: int = 0, save: dict[str, Any] | None = None, **settings: Any) -> Any:
    """Save a base and an adapter of it, trained as far as anything of it is trained; return PEFT's model."""
    base = tiny(name)
    base.save_pretrained(folder / "base")
    if grown:
        base.resize_token_embeddings(VOCABULARY + grown, mean_resizing=False)
    targets = ["q_proj", *settings.pop("target_modules", [])]
    model = get_peft_model(base, LoraConfig(r=2, lora_alpha=3, target_modules=targets, **settings))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    generator = torch.Generator().manual_seed(0)
    for parameter in trained:
        parameter.data.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder / "adapter", **save or {})
    return model


def merge(folder: Path, *patterns: str) -> list[str]:
    rules = ParameterRules(merged=patterns or ["*"], flags=True)
    models = {"a": folder / "adapter"}
    return merge_checkpoints("average", {}, folder / "base", models, folder / "out", rules=rules, device="cpu")


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=TOKENS).logits
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"save": COPIES},
        {"modules_to_save": [EMBEDDING], "ensure_weight_tying": True},
        {"modules_to_save": [EMBEDDING, HEAD], "ensure_weight_tying": True},
        {"target_modules": [EMBEDDING], "ensure_weight_tying": True},
        {"target_modules": [EMBEDDING, HEAD], "ensure_weight_tying": True},
    ],
    ids=str,
)
def test_one_update_of_a_tied_weight_is_taken_under_both_names(settings: dict[str, Any], tmp_path: Path) -> None:
    """As PEFT computes; its merge_and_unload would add a low-rank one to the one weight twice."""
    model = adapted(tmp_path, "llama, tied", **settings)
    assert merge(tmp_path) == []
    torch.testing.assert_close(logits(load(tiny("llama, tied"), tmp_path / "out")), logits(model))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"target_modules": [HEAD]}, ONE_WEIGHT),
        ({"target_modules": [EMBEDDING, HEAD]}, ONE_WEIGHT),
        ({"target_modules": [HEAD], "save": COPIES}, ONE_WEIGHT),
        ({"modules_to_save": [HEAD]}, ONE_WEIGHT),
        ({"modules_to_save": [HEAD], "save": COPIES}, ONE_WEIGHT),
        ({"modules_to_save": [EMBEDDING, HEAD]}, ONE_WEIGHT),
        ({"modules_to_save": [EMBEDDING], "save": COPIES}, ONE_WEIGHT),
        ({"modules_to_save": [EMBEDDING]}, OF_THE_INPUT),
    ],
    ids=str,
)
def test_what_unties_the_base_is_refused_and_the_rest_can_be_merged(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    adapted(tmp_path, "llama, tied", **settings)
    with pytest.raises(InputError, match=said):
        merge(tmp_path)
    merge(tmp_path, "model.layers.*")


def test_a_low_rank_update_of_the_input_alone_is_merged_as_by_peft_and_named(tmp_path: Path) -> None:
    model = adapted(tmp_path, "llama, tied", target_modules=[EMBEDDING])
    assert any("model.embed_tokens.weight was trained under one of two names" in note for note in merge(tmp_path))
    torch.testing.assert_close(logits(load(tiny("llama, tied"), tmp_path / "out")), logits(model.merge_and_unload()))


@pytest.mark.parametrize("trained", [EMBEDDING, HEAD])
@pytest.mark.parametrize("how", ["target_modules", "modules_to_save"])
def test_an_untied_base_has_each_update_and_the_copies_beside_it(how: str, trained: str, tmp_path: Path) -> None:
    model = adapted(tmp_path, "llama, untied", save=COPIES, **{how: [trained]})
    merge(tmp_path)
    torch.testing.assert_close(logits(load(tiny("llama, untied"), tmp_path / "out")), logits(model))


@pytest.mark.parametrize("name", ["llama, tied", "llama, untied"])
def test_embeddings_of_more_tokens_are_in_the_way_only_where_they_are_merged(name: str, tmp_path: Path) -> None:
    model = adapted(tmp_path, name, grown=3, save=COPIES)
    with pytest.raises(
        InputError, match=r"is for shape \[43, 16\], in the base .* has \[40, 16\]; merge without it: --ex"
    ):
        merge(tmp_path)
    merge(tmp_path, "model.layers.*")
    found = logits(load(tiny(name), tmp_path / "out"))
    torch.testing.assert_close(found, logits(model)[..., :VOCABULARY])
