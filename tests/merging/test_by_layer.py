"""Values by layer and by task: which layers a pattern matches, what is refused, and merges of checkpoints on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from merganser import registry
from merganser.config.points import values_for
from merganser.config.recipes import read_recipe
from merganser.errors import InputError
from merganser.merging.binding import by_values, check_patterns, check_tasks, layer_values, matches
from merganser.standalone.merge import merge_by
from tests.merges import merge_checkpoints
from tests.small_models import SHAPES, write_models

NAMES = ["h.0.mlp.bias", "h.3.mlp.weight", "h.12.attn.weight", "ln_f.weight"]


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("*", NAMES),
        ("h.0-3.*", NAMES[:2]),
        ("*.3-12.*", NAMES[1:3]),
        ("h.[0-3].*", NAMES[:2]),  # one digit of these
        ("h.1-2.*", []),
        ("h.?.mlp.*", NAMES[:2]),
        ("mlp", []),  # the whole name
    ],
)
def test_a_pattern_matches_whole_names_and_numbers_between_dots(pattern: str, matched: list[str]) -> None:
    assert [name for name in NAMES if matches(pattern, name)] == matched


def test_a_range_is_of_a_whole_part_and_stands_anywhere() -> None:
    assert matches("0-1.x.10-11", "1.x.11")
    assert not matches("0-1.x.10-11", "1.x.12")
    assert matches("a0-1", "a0-1")  # a name, not a range
    assert matches("*.0-3.*", "blocks.7.experts.2.weight")  # any of its numbers


def test_later_patterns_override_earlier_ones_value_by_value() -> None:
    layers = {"h.*": {"scaling": 0.5, "density": 0.3}, "*.bias": {"scaling": 0.1}}
    values = {"scaling": 1.0, "density": 0.2, "layers": layers}
    assert layer_values(values, NAMES[0]) == {"scaling": 0.1, "density": 0.3}
    found = by_values(values, NAMES, str)
    assert [names for _, names in found] == [NAMES[:1], NAMES[1:3], NAMES[3:]]
    assert found[2][0] == {"scaling": 1.0, "density": 0.2}


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ({"h.*": {"densty": 0.5}}, 'e.layers.h.*.densty: ties has no such parameter; did you mean "density"?'),
        ({"h.*": {"density": 0}}, "e.layers.h.*.density: expected a number above 0 and up to 1, or a map"),
        (
            {"h.*": 0.5},
            "e.layers.h.*: expected a map with values of density, averaging, scaling, coefficients, got 0.5",
        ),
        ({"h.9-0.*": {"density": 0.5}}, "e.layers.h.9-0.*: 9-0: expected the smaller number first"),
        ({3: {"density": 0.5}}, "e.layers.3: expected a pattern of parameters' names"),
        (0.5, "e.layers: expected a map from patterns to parameters, got 0.5"),
    ],
)
def test_what_cannot_be_is_refused_by_its_place(layers: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        registry.get("ties").validate("e", {"layers": layers})
    assert said in str(caught.value)


def test_what_is_the_whole_merges_is_refused() -> None:
    with pytest.raises(InputError, match=r"layers\.\*\.k_gate: is one for all layers"):
        registry.get("smile").validate("e", {"layers": {"*": {"k_gate": 2}}})


@pytest.mark.parametrize(
    ("pattern", "near"),
    [("h.0-3", 'write "h.0-3.*"'), ("mlp", 'write "*.mlp.*"'), ("ln_g.weight", 'did you mean "ln_f.weight"')],
)
def test_a_pattern_that_matches_nothing_is_refused_with_one_that_does(pattern: str, near: str) -> None:
    with pytest.raises(InputError) as caught:
        check_patterns({"layers": {pattern: {}}}, NAMES, "methods.x.")
    assert str(caught.value).startswith(f"methods.x.layers.{pattern}: matches the name of no parameter")
    assert near in str(caught.value)


def test_a_map_of_drop_rates_names_every_task() -> None:
    check_tasks(registry.get("dare"), {"scaling": {"a": 2.0}, "drop_rate": {"a": 0.1, "b": 0.2}}, ["a", "b"])
    with pytest.raises(InputError, match="drop_rate: b missing; the map must name every task"):
        check_tasks(registry.get("dare"), {"drop_rate": {"a": 0.1}}, ["a", "b"])
    with pytest.raises(InputError, match=r"layers\.h\.\*\.drop_rate: no such task: c"):
        check_tasks(registry.get("dare"), {"layers": {"h.*": {"drop_rate": {"c": 0.1}}}}, ["a", "b"])


def test_a_subset_of_the_tasks_has_its_own_of_every_map() -> None:
    values = {"k": 2, "density": {"a": 0.1, "b": 0.2}, "layers": {"h.*": {"density": {"a": 0.3, "b": 0.4}}}}
    found = values_for(values, ("b",))
    assert found == {"k": 2, "density": {"b": 0.2}, "layers": {"h.*": {"density": {"b": 0.4}}}}


def test_the_seed_and_the_rank_are_those_of_the_layers_that_need_them() -> None:
    dare, tsv_m = registry.get("dare"), registry.get("tsv_m")
    still = dare.validate("e", {"drop_rate": 0.0, "layers": {"h.*": {"scaling": 0.5}}})
    drawn = dare.validate("e", {"drop_rate": 0.0, "layers": {"h.*": {"drop_rate": {"a": 0.0, "b": 0.5}}}})
    assert [dare.is_random(values) for values in (still, drawn)] == [False, True]
    values = tsv_m.validate("e", {"rank_fraction": 0.1, "layers": {"h.*": {"rank_fraction": 0.6}}})
    assert tsv_m.share_needed(2, values) == 0.6


def test_a_merge_on_disk_takes_values_by_layer_and_its_recipe_repeats_them(tmp_path: Path) -> None:
    models = write_models(tmp_path / "models")
    tasks = {name: path for name, path in models.items() if name != "base"}
    values = {"scaling": 0.4, "layers": {"blocks.0.*": {"scaling": 0.1}, "*bias": {"scaling": {"task1": -2.0}}}}
    merge_checkpoints("task_arithmetic", values, models["base"], tasks, tmp_path / "out", device="cpu")
    states = {name: load_file(path / "model.safetensors") for name, path in models.items()}
    merged = load_file(tmp_path / "out/model.safetensors")
    for name in SHAPES:
        base = states["base"][name].double().numpy()
        deltas = np.stack([states[f"task{t}"][name].double().numpy() - base for t in range(3)])
        scalings = [0.1] * 3 if name.startswith("blocks.0.") else [0.4] * 3
        scalings = [1.0, -2.0, 1.0] if name.endswith("bias") else scalings
        expected = base + np.tensordot(scalings, deltas, 1)
        np.testing.assert_allclose(merged[name].double().numpy(), expected, rtol=1e-5, atol=1e-6)
    recipe = tmp_path / "out/merge.yaml"
    merge_by(read_recipe(recipe), recipe, tmp_path / "again")
    again = load_file(tmp_path / "again/model.safetensors")
    assert all(torch.equal(again[name], merged[name]) for name in merged)


def test_a_pattern_without_a_layer_stops_a_merge_before_anything_is_written(tmp_path: Path) -> None:
    models = write_models(tmp_path / "models")
    tasks = {name: path for name, path in models.items() if name != "base"}
    values = {"layers": {"blocks.9.*": {"density": 0.5}}}
    with pytest.raises(InputError, match=r"layers\.blocks\.9\.\*: matches the name of no parameter"):
        merge_checkpoints("ties", values, models["base"], tasks, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()
