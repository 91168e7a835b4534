"""Checkpoints that transformers itself saved: which tensors are parameters, which of these are matrices."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from merganser.checkpoints.architecture import Architecture
from merganser.checkpoints.kinds import ParameterRules, parameter_kind
from tests.checkpoints.merge_table import merged_row
from tests.transformers_models import MODELS, tiny

LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, Conv1D)
HEADS = ("lm_head", "classifier", "score")


@pytest.mark.parametrize("name", MODELS)
def test_linear_maps_are_matrices_and_nothing_else_is(name: str) -> None:
    """By the types of the modules; heads apart, whose rows are tokens or classes."""
    model = tiny(name)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for path, module in model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            a_map = isinstance(module, LINEAR) or type(module).__name__.endswith("Router")
            linear = ((a_map and own == "weight") or own == "in_proj_weight") and parameter.ndim > 1
            wanted = linear and not path.startswith(HEADS) and names[id(parameter)] == f"{path}.{own}"
            found = parameter_kind(names[id(parameter)], parameter.shape, ParameterRules())
            assert found == ("matrix" if wanted else "vector"), f"{path}.{own}"
            in_by_out = Architecture({"model_type": model.config.model_type}).is_in_by_out(
                f"{path}.{own}", parameter.shape
            )
            assert in_by_out == (isinstance(module, Conv1D) and own == "weight")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("electra.embeddings_project.weight", "matrix"),
        ("albert.encoder.embedding_hidden_mapping_in.weight", "matrix"),
        ("generator_lm_head.weight", "vector"),
        ("gpt_neox.embed_in.weight", "vector"),
        ("embed_out.weight", "vector"),
        ("module.classifier.out_proj.weight", "vector"),
        ("model.decoder.project_in.weight", "matrix"),
        ("final_logits_bias", "vector"),  # BART's, of one row
        ("visual.attn_pool.query", "vector"),  # CoCa's in open_clip
        ("model.connector.perceiver_resampler.latents", "vector"),
        ("vit.layer.0.attention.query.weight", "matrix"),
    ],
)
def test_names_of_further_architectures(name: str, kind: str) -> None:
    assert parameter_kind(name, (8, 6), ParameterRules()) == kind


def test_open_clips_names_are_what_they_were() -> None:
    shapes = {"visual.proj": "matrix", "text_projection": "matrix", "token_embedding.weight": "vector"}
    shapes |= {"positional_embedding": "vector", "visual.head.proj.weight": "matrix", "proj": "matrix"}
    shapes |= {"transformer.resblocks.0.mlp.c_proj.weight": "matrix", "visual.transformer.resblocks.0.ln_1": "vector"}
    assert {name: parameter_kind(name, (8, 6), ParameterRules()) for name in shapes} == shapes
    assert not Architecture().is_in_by_out("transformer.resblocks.0.mlp.c_proj.weight", torch.Size((8, 6)))


@pytest.mark.parametrize("name", MODELS)
def test_a_merge_loads_back_and_is_its_formula(name: str, tmp_path: Path) -> None:
    """A sample: `python -m tests.drills architectures` tries ten methods in each dtype, whole and sharded."""
    row = merged_row(tmp_path, name, "bfloat16", "sharded", ["dare", "tsv_m", "drm_h"])
    assert max(row.errors.values()) < 1
