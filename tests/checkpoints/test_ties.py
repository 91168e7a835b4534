"""The table of tied weights, held to the model classes of transformers."""

import ast
import re
from functools import cache
from pathlib import Path

import transformers

from merganser.checkpoints.architecture import Architecture, known_ties, tied_names

DECLARED = re.compile(r"^    _tied_weights_keys = (\{[^{}]*\})$", re.MULTILINE)


@cache
def declared_ties() -> frozenset[tuple[str, str]]:
    """Collect what the classes declare: a second name and its first; patterns and whole modules are left out."""
    files = Path(transformers.__file__).parent.glob("models/*/modeling_*.py")
    texts = [text for file in files for text in DECLARED.findall(file.read_text(encoding="utf-8"))]
    pairs = {pair for text in texts for pair in ast.literal_eval(text).items()}
    return frozenset(p for p in pairs if all(re.fullmatch(r"[\w.]+\.(weight|bias)", name) for name in p))


def test_every_tie_of_two_tensors_is_known() -> None:
    pairs = declared_ties()
    assert len(pairs) > 80
    assert {pair for pair in pairs if not known_ties(set(pair))} == set()


def test_a_name_stands_for_one_other_and_never_both_for_each_other() -> None:
    for pair in declared_ties():
        assert len(known_ties(set(pair))) == 1, pair


def test_a_configuration_that_unties_leaves_what_is_always_one() -> None:
    names = {"shared.weight", "encoder.embed_tokens.weight", "lm_head.weight"}
    assert known_ties(names) == {"encoder.embed_tokens.weight": "shared.weight", "lm_head.weight": "shared.weight"}
    assert known_ties(names, tied=False) == {"encoder.embed_tokens.weight": "shared.weight"}


def test_a_tie_is_known_behind_whatever_a_larger_model_puts_before_it() -> None:
    first, second = "model.language_model.model.embed_tokens.weight", "model.language_model.lm_head.weight"
    assert known_ties({first, second}) == {second: first}
    assert second in tied_names(first)
    assert first in tied_names(second)
    assert "shared.weight" in tied_names("decoder.embed_tokens.weight")
    assert "lm_head.weight" in tied_names("decoder.embed_tokens.weight")  # both are the shared one
    assert list(tied_names("model.layers.0.mlp.up_proj.weight")) == []


def test_a_silent_configuration_ties_as_its_class_does() -> None:
    said = {"llama": False, "gemma": True, "gemma3": True, "llava": False, "strange": None}
    assert {kind: Architecture({"model_type": kind}).tied for kind in said} == said
    assert Architecture({"model_type": "llama", "tie_word_embeddings": True}).tied is True
    assert Architecture({"model_type": "strange", "text_config": {"tie_word_embeddings": False}}).tied is False
