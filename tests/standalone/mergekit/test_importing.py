"""Configurations of mergekit become merges of ours, or are refused by what cannot be expressed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from merganser import registry
from merganser.checkpoints.writing import save_tensors
from merganser.config.loading import load_params
from merganser.config.recipes import read_recipe
from merganser.errors import InputError
from merganser.merging.binding import layer_values
from merganser.standalone.mergekit.importing import imported, write_imported
from merganser.standalone.mergekit.methods import KIN, REFUSED
from merganser.standalone.mergekit.settings import Parameter, parameters_of, setting_at
from tests.command_line.conftest import Done, Refused, command_line, done, refused

__all__ = ["command_line", "done", "refused"]

NAMES = [
    "model.embed_tokens.weight",
    *(f"model.layers.{n}.{part}.weight" for n in range(3) for part in ("self_attn.q_proj", "mlp.up_proj", "norm")),
    "model.norm.weight",
]
ATTENTION = [{"filter": "self_attn", "value": [0.0, 1.0]}, {"filter": "mlp", "value": 0.2}, {"value": 0.5}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with a base, models `a` and `b` and an adapter's folder, and work in it."""
    for number, name in enumerate(("base", "a", "b")):
        (tmp_path / name).mkdir()
        drawn = torch.Generator().manual_seed(number)
        save_tensors(tmp_path / name / "model.safetensors", {n: torch.randn(4, 4, generator=drawn) for n in NAMES})
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 3}))
    (tmp_path / "lora").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(method: str, *models: Any, **more: Any) -> Path:
    """Write a configuration; a model is its name, or (name, parameters)."""
    listed = [
        {"model": each} if isinstance(each, str) else {"model": each[0], "parameters": each[1]} for each in models
    ]
    content = {"merge_method": method, **({"models": listed} if listed else {}), **more}
    Path("config.yml").write_text(yaml.safe_dump({key: each for key, each in content.items() if each is not None}))
    return Path("config.yml")


def weighted(*weights: Any, **more: Any) -> list[Any]:
    """Give the models `a` and `b` weights, and more parameters."""
    return [(name, {"weight": weight, **more}) for name, weight in zip("ab", weights, strict=True)]


BASE = {"base_model": "base"}
OURS: dict[str, tuple[str, list[Any], dict[str, Any], str, dict[str, Any]]] = {
    "linear": ("linear", weighted(0.7, 0.3), {}, "average", {"coefficients": {"a": 0.7, "b": 0.3}}),
    "linear, negative": (
        *("linear", weighted(1.5, -0.5), {}, "task_arithmetic"),
        {"coefficients": {"a": 1.5, "b": -0.5}, "scaling": 1.0},
    ),
    "linear, not normalised": (
        *("linear", weighted(0.7, 0.3), {"parameters": {"normalize": False}}, "task_arithmetic"),
        {"coefficients": {"a": 0.7, "b": 0.3}, "scaling": 1.0},
    ),
    "task_arithmetic": (
        *("task_arithmetic", ["base", *weighted(0.7, "3e-1")], BASE | {"parameters": {"lambda": 0.5}}),
        *("task_arithmetic", {"coefficients": {"a": 0.7, "b": 0.3}, "scaling": 0.5}),
    ),
    "task_arithmetic, normalised": (
        *("task_arithmetic", weighted(3, 1), BASE | {"parameters": {"normalize": True}}),
        *("task_arithmetic", {"coefficients": {"a": 0.75, "b": 0.25}, "scaling": 1.0}),
    ),
    "della": (
        *("della", weighted(0.7, 0.3, density=0.5, epsilon=0.1), BASE | {"parameters": {"int8_mask": True}}),
        "sparse_arithmetic",
        {
            "keep": "random_by_size",
            "density": {"a": 0.5, "b": 0.5},
            "eps": 0.2,
            "rescale": True,
            "elect": True,
            "averaging": "disjoint",
            "coefficients": {"a": 0.7, "b": 0.3},
            "scaling": 1.0,
        },
    ),
    "breadcrumbs_ties": (
        *("breadcrumbs_ties", weighted(1, 2, density=1.5, gamma=0.25), BASE),
        "sparse_arithmetic",
        {
            "keep": "middle",
            "density": {"a": 1.0, "b": 1.0},
            "gamma": 0.75,
            "rescale": False,
            "elect": True,
            "averaging": "sum",
            "coefficients": {"a": 1.0, "b": 2.0},
            "scaling": 1.0,
        },
    ),
    "slerp": (
        *("slerp", ["a"], BASE | {"parameters": {"t": 0.25}}),
        *("slerp", {"coefficients": {"base": 0.75, "a": 0.25}}),
    ),
    "nuslerp": (
        *("nuslerp", weighted(1, 3), BASE | {"parameters": {"nuslerp_flatten": False}}),
        *("nuslerp", {"of": "deltas", "granularity": "row", "coefficients": {"a": 1.0, "b": 3.0}}),
    ),
    "nuslerp of models": (
        *("nuslerp", weighted(0, 0), {"parameters": {"nuslerp_flatten": False, "nuslerp_row_wise": True}}),
        *("nuslerp", {"of": "models", "granularity": "column", "coefficients": {"a": 1.0, "b": 1.0}}),
    ),
    "model_stock": (
        *("model_stock", ["a", "b"], BASE | {"parameters": {"filter_wise": True}}),
        *("model_stock", {"granularity": "row"}),
    ),
    "task_arithmetic, normalised by a number": (
        *("task_arithmetic", weighted(3, 1), BASE | {"parameters": {"normalize": 1.0}}),
        *("task_arithmetic", {"coefficients": {"a": 0.75, "b": 0.25}, "scaling": 1.0}),
    ),
    "multislerp": (
        *("multislerp", weighted(1, 3), BASE | {"parameters": {"eps": 1e-6}}),
        *("multislerp", {"of": "deltas", "coefficients": {"a": 1.0, "b": 3.0}}),
    ),
    "multislerp of models": (
        *("multislerp", weighted(0.25, 0.75), {"parameters": {"normalize_weights": False}}),
        *("multislerp", {"of": "models", "coefficients": {"a": 0.25, "b": 0.75}}),
    ),
    "nearswap": ("nearswap", ["a"], BASE | {"parameters": {"t": 0.002}}, "nearswap", {"limit": 0.002}),
    "ram": ("ram", ["a", "b"], BASE, "ram", {"eps": 1e-5, "boost": 0.0}),
    "ramplus_tl": (
        *("ramplus_tl", ["a", "b"], BASE | {"parameters": {"epsilon": 1e-4, "r": 0.5}}),
        *("ram", {"eps": 1e-4, "boost": 0.5, "limit": 0.2, "granularity": "parameter"}),
    ),
    "karcher": ("karcher", ["a", "b"], {"parameters": {"max_iter": 5}}, "karcher", {}),
    "karcher, in a module": (
        *(
            "karcher",
            [],
            {
                "modules": {
                    "default": {"slices": [{"sources": [{"model": name, "layer_range": [0, 3]} for name in "ab"]}]}
                }
            },
        ),
        *("karcher", {}),
    ),
    "sce": ("sce", ["a", "b"], BASE | {"parameters": {"select_topk": 0.1}}, "sce", {"density": 0.1}),
    "arcee_fusion": ("arcee_fusion", ["a"], BASE, "arcee_fusion", {}),
}


@pytest.mark.parametrize("case", OURS)
def test_a_configuration_becomes_an_entry_that_our_method_accepts(case: str, folder: Path) -> None:
    theirs, models, more, ours, values = OURS[case]
    found = imported(written(theirs, *models, **more))
    assert (found.method, found.values) == (ours, values)
    assert registry.get(ours).validate("entry", dict(found.values))


def test_every_method_that_is_brought_over_is_one_of_the_registry() -> None:
    assert not KIN.keys() & REFUSED.keys()
    assert {"linear", "task_arithmetic", "ties", "dare_ties", "dare_linear", "della", "della_linear", "slerp"} < set(
        KIN
    )


WRONG: dict[str, tuple[Mapping[str, Any], str]] = {
    "passthrough": ({"merge_method": "passthrough"}, "merge_method: passthrough: copies or stacks"),
    "a method misspelt": ({"merge_method": "tise"}, 'merge_method: tise: .*did you mean "ties"'),
    "no base": ({"base_model": None}, "base_model: missing; mergekit's ties needs it"),
    "an adapted base": ({"base_model": "base+lora"}, "base_model: base\\+lora is adapted"),
    "an adapter of another": ({"models": [{"model": "a+lora"}]}, "a\\+lora: an adapter of a, not of the base base"),
    "modules": ({"modules": {"x": {}}}, "modules: x: mergekit merges each module .* only one module, named default"),
    "modules that are no map": ({"modules": True}, "modules: True: mergekit merges each module"),
    "a source that is no list": (
        {"models": None, "slices": [{"sources": {"model": "a", "layer_range": [0, 2]}}]},
        "slices: they end at layer 2 of a, which has 3 layers: that makes another model",
    ),
    "experts": ({"merge_method": None, "experts": [1]}, "experts: builds a mixture of experts"),
    "no method": ({"merge_method": None}, "it has no merge_method"),
    "slices and models": ({"slices": [{"sources": []}]}, "expected either models or slices"),
    "several slices": ({"models": None, "slices": [{"sources": []}] * 2}, r"slices\[0\].sources: no models"),
    "some layers": (
        {"models": None, "slices": [{"sources": [{"model": "a", "layer_range": [0, 2]}]}]},
        "slices: they end at layer 2 of a, which has 3 layers: that makes another model",
    ),
    "stacked slices": (
        {"models": None, "slices": [{"sources": [{"model": "a", "layer_range": each}]} for each in ([0, 2], [1, 3])]},
        r"slices\[1\].sources\[0\]: layer_range \[1, 3\] where its layers go on at 2: that makes another model",
    ),
    "slices of other models": (
        {
            "models": None,
            "slices": [
                {"sources": [{"model": "a", "layer_range": [0, 2]}]},
                {"sources": [{"model": "b", "layer_range": [2, 3]}]},
            ],
        },
        r"slices\[1\]: it merges b, and slices\[0\] a: that makes another model",
    ),
    "a slice of another base": (
        {"models": None, "slices": [{"base_model": "a", "sources": [{"model": "a", "layer_range": [0, 3]}]}]},
        r"slices\[0\].base_model: a: a merge of whole models has one base",
    ),
    "a base outside the slices": (
        {"models": None, "slices": [{"sources": [{"model": "a", "layer_range": [0, 3]}]}]},
        "slices: no source is base, the base_model; add it, with its layer_range",
    ),
    "not a number": ({"parameters": {"weight": float("nan")}}, "weight: expected a number, got nan"),
    "an endless number": ({"parameters": {"weight": 1, "density": "inf"}}, "density: expected a number, got 'inf'"),
    "half a flag": ({"parameters": {"weight": 1, "normalize": 0.5}}, "normalize: expected true or false, got 0.5"),
    "a key misspelt": ({"base_modl": "base"}, 'base_modl: mergekit has no such key; did you mean "base_model"'),
    "a parameter misspelt": ({"parameters": {"densty": 1}}, 'densty: mergekit has no such .*did you mean "density"'),
    "a missing weight": ({"models": [{"model": "a"}]}, "a: weight: missing"),
    "no number": ({"parameters": {"weight": "much"}}, "weight: expected a number, got 'much'"),
    "density 0": ({"parameters": {"weight": 1, "density": 0}}, "density: 0 keeps nothing of it"),
    "a token": ({"tokenizer": {"tokens": {"<x>": {}}}}, "tokenizer.tokens.<x>: expected a model as mergekit names it"),
    "a token of zeros": (
        {"tokenizer": {"tokens": {"<x>": {"source": {"kind": "zero"}}}}},
        "tokenizer.tokens.<x>: zero: .*leave the token out",
    ),
    "a token of no kind": (
        {"tokenizer": {"tokens": {"<x>": {"source": {"kind": "mean"}}}}},
        "tokenizer.tokens.<x>: mean: mergekit has zero and model_token",
    ),
    "a token of a kind that is no word": (
        {"tokenizer": {"tokens": {"<x>": {"source": {"kind": ["zero"]}}}}},
        r"tokenizer.tokens.<x>: \['zero'\]: mergekit has zero and model_token",
    ),
    "another token's rows": (
        {"tokenizer": {"tokens": {"<x>": {"source": {"kind": "model_token", "model": "a", "token": "<y>"}}}}},
        "tokenizer.tokens.<x>: model_token: .*add the token to that model first",
    ),
    "a token by its number": (
        {"tokenizer": {"tokens": {"<x>": {"source": {"kind": "model_token", "model": "a", "token_id": 3}}}}},
        "tokenizer.tokens.<x>: model_token: ",
    ),
    "a token of another": ({"tokenizer": {"tokens": {"<x>": "c"}}}, "tokenizer.tokens.<x>: c is none of the models"),
    "padding": (
        {"tokenizer": {"source": "base", "pad_to_multiple_of": 8}},
        r"resize_token_embeddings\(pad_to_multiple_of=8",
    ),
    "another's tokenizer": ({"tokenizer_source": "c"}, "tokenizer_source: c is none of the models"),
    "a template": ({"chat_template": "chatml"}, "chat_template: a merge takes a model's"),
    "a dtype": ({"dtype": "float64"}, "dtype: expected float32, float16, bfloat16, got 'float64'"),
    "twice": ({"models": [{"model": "a"}, {"model": "a"}]}, "models\\[1\\]: a is there twice"),
    "a bad filter": ({"parameters": {"weight": [{"filtr": "mlp", "value": 1}]}}, "weight: expected a number, a list"),
    "a gradient of a hub's": (
        {"base_model": "org/name", "parameters": {"weight": [0, 1]}},
        "org/name: values by layer or filter .* not on this disk",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_expressed_is_refused_by_name(case: str, folder: Path) -> None:
    change, said = WRONG[case]
    models = [{"model": name} for name in ("a", "b")]
    content = {"merge_method": "ties", "models": models, "base_model": "base", "parameters": {"weight": 1.0}}
    if case == "a missing weight":
        content["parameters"] = {}
    content = {key: each for key, each in (content | change).items() if each is not None}
    Path("config.yml").write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match=said):
        imported(Path("config.yml"))


def test_beyond_their_bounds_t_and_unnormalised_weights_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"t: expected a number from 0 to 1, got 1\.2"):
        imported(written("slerp", "a", base_model="base", parameters={"t": 1.2}))
    with pytest.raises(InputError, match=r"normalize: the weights add up to 1\.3"):
        imported(written("linear", *weighted(1, 0.3), parameters={"normalize": False}))
    with pytest.raises(InputError, match="models: expected two models to go between, got 3: base, a, b"):
        imported(written("slerp", "a", "b", base_model="base", parameters={"t": 0.5}))


def test_a_gradient_runs_over_the_layers_and_filters_take_the_first_that_fits() -> None:
    first, middle, last = (Parameter(f"h.{n}.mlp.w", n / 2) for n in range(3))
    assert [setting_at([0.0, 1.0, 4.0], parameter) for parameter in (first, middle, last)] == [0.0, 1.0, 4.0]
    assert [setting_at([0.0, 1.0], parameter) for parameter in (first, middle, last)] == [0.0, 0.5, 1.0]
    assert setting_at([True, False], middle) is True
    assert setting_at([{"filter": "attn", "value": 1}], middle) is None
    assert setting_at([{"filter": "*", "value": 7}, {"filter": "mlp", "value": 1}], middle) == 7
    assert [parameter.depth for parameter in parameters_of(["h.0.w", "wte"], 1)] == [1.0, 0.0]


def test_a_gradient_runs_over_each_stack_of_a_model() -> None:
    names = ["encoder.block.0.layer.1.w", "encoder.block.1.layer.0.w", *(f"decoder.block.{n}.w" for n in range(3))]
    assert [parameter.depth for parameter in parameters_of(names, 2)] == [0.0, 1.0, 0.0, 0.5, 1.0]
    beyond = [f"model.layers.{n}.w" for n in range(4)]  # the last one predicts a further token
    assert [parameter.depth for parameter in parameters_of(beyond, 3)] == [0.0, 0.5, 1.0, 1.0]


def test_values_by_layer_and_filter_are_those_of_every_parameter(folder: Path) -> None:
    found = imported(written("slerp", "a", base_model="base", parameters={"t": ATTENTION}))
    depth = {parameter.name: parameter for parameter in parameters_of(NAMES, 3)}
    for name in NAMES:
        wanted = setting_at(ATTENTION, depth[name])
        assert layer_values(found.values, name) == {"coefficients": {"base": 1 - wanted, "a": wanted}}, name
    assert len(found.values["layers"]) < len(NAMES)
    registry.get("slerp").validate("entry", dict(found.values))


def test_a_model_whose_density_is_0_in_a_layer_adds_nothing_there(folder: Path) -> None:
    found = imported(written("ties", *weighted(1.0, 2.0, density=[0, 0.5, 1]), base_model="base"))
    values = {name: layer_values(found.values, name) for name in NAMES}
    assert values["model.layers.0.norm.weight"]["coefficients"] == {"a": 0.0, "b": 0.0}
    assert values["model.layers.1.norm.weight"]["coefficients"] == {"a": 1.0, "b": 2.0}
    assert values["model.layers.1.norm.weight"]["density"] == {"a": 0.5, "b": 0.5}


def test_an_adapter_of_the_base_is_read_as_one_and_names_are_told_apart(folder: Path) -> None:
    found = imported(written("task_arithmetic", ("base+lora", {"weight": 1}), base_model="base"))
    recipe_folder = Path("brought")
    write_imported(found, Path("config.yml"), recipe_folder)
    recipe = read_recipe(recipe_folder / "merge.yaml")
    assert {name: source.path for name, source in recipe.models.items()} == {"lora": "../lora"}
    assert imported(written("linear", ("org/x", {"weight": 1}), ("other/x", {"weight": 1}))).models.keys() == {
        "x",
        "x-2",
    }


def test_a_name_that_is_taken_or_of_another_alphabet_becomes_a_free_one(folder: Path) -> None:
    models = [(f"{org}/{name}", {"weight": 1}) for org, name in (("a", "x"), ("a", "x-3"), ("b", "x"), ("c", "x"))]
    assert [*imported(written("linear", *models)).models] == ["x", "x-3", "x-2", "x-4"]
    others = [(f"a/{name}", {"weight": 1}) for name in ("modèle", "²")]
    assert [*imported(written("linear", *others)).models] == ["mod-le", "model"]


def test_models_of_a_hub_are_named_as_such_and_pinned_or_followed(folder: Path) -> None:
    commit = "0" * 40
    models = [(f"org/one@{commit}", {"weight": 1}), ("org/two", {"weight": 1})]
    write_imported(imported(written("linear", *models, dtype="bfloat16")), Path("config.yml"), Path("out"))
    recipe = read_recipe(Path("out/merge.yaml"))
    assert [(each.hub, each.revision) for each in recipe.models.values()] == [("org/one", commit), ("org/two", None)]
    assert recipe.dtype == "bfloat16"
    params = yaml.safe_load(Path("out/params.yaml").read_text())
    assert params["tasks"]["two"]["source"] == "out/sources/two.yaml"
    pointers = [yaml.safe_load(Path(f"out/sources/{name}.yaml").read_text()) for name in ("one", "two")]
    assert pointers == [{"hub": "org/one", "revision": commit}, {"hub": "org/two", "follow": "main"}]


def test_all_that_the_params_lack_is_the_tasks_data(folder: Path) -> None:
    config = written("ties", *weighted(0.7, 0.3, density=0.5), base_model="base")
    write_imported(imported(config), config, Path("out"))
    with pytest.raises(InputError, match=r"tasks\.a\.data: missing") as refusal:
        load_params(Path("out/params.yaml"))
    assert all(".data: missing" in line for line in str(refusal.value).splitlines())


@pytest.mark.parametrize(
    ("asked", "tokenizer", "rows"),
    [
        ({}, None, {}),
        ({"tokenizer_source": "base"}, "base", {}),
        ({"tokenizer": {"source": "base"}}, "base", {}),
        ({"tokenizer_source": "union"}, "union", {}),
        ({"tokenizer_source": "b"}, "b", {}),
        ({"tokenizer": {"source": {"model": "a"}}}, "a", {}),
        ({"tokenizer": {"tokens": {"<x>": {"source": "b", "force": True}}}}, "union", {"<x>": "b"}),
        ({"tokenizer": {"source": "base", "tokens": {"<x>": "base"}}}, "base", {"<x>": "base"}),
    ],
)
def test_a_tokenizer_is_brought_over(asked: Any, tokenizer: str | None, rows: Any, folder: Path) -> None:
    for name in ("base", "a", "b"):
        Path(name, "tokenizer.json").write_text(json.dumps({"of": name}))
    config = written("linear", "a", "b", base_model="base", parameters={"weight": 1.0}, **asked)
    found = imported(config)
    assert (found.tokens.tokenizer, found.tokens.rows) == (tokenizer, rows)
    assert any("force" in note for note in found.notes) == (rows == {"<x>": "base"})
    write_imported(found, config, Path("brought"))
    recipe, params = (yaml.safe_load(Path("brought", name).read_text()) for name in ("merge.yaml", "params.yaml"))
    assert (recipe.get("tokenizer"), recipe.get("rows", {})) == (tokenizer, rows)
    vocabulary = {"source": "base", "tokenizer": tokenizer, "rows": rows}
    assert params.get("vocabularies") == ({"merged": vocabulary} if tokenizer else None)
    assert params["base"]["source"] == ("data/vocabularies/merged" if tokenizer else "base")


def test_slices_that_keep_each_layer_in_its_place_are_values_by_layer(folder: Path, done: Done) -> None:
    def part(first: int, end: int, weight: Any) -> dict[str, Any]:
        own = {"a": {"weight": weight}, "b": {}}
        sources = [{"model": name, "layer_range": [first, end], "parameters": own[name]} for name in "ab"]
        return {"sources": sources, "parameters": {"weight": 1}}

    written("linear", slices=[part(0, 1, 3), part(1, 3, [0, 1])], parameters={"weight": 7})
    done(folder, "import-mergekit", "config.yml", "--out", "brought")
    done(folder, "merge", "brought/merge.yaml", "--out", "merged", "--device", "cpu")
    one, other, merged = (load_file(folder / name / "model.safetensors") for name in ("a", "b", "merged"))
    weights = {"embed": 3, "layers.0": 3, "layers.1": 0, "layers.2": 1, "model.norm": 0}  # of a, beside b's 1
    for name in NAMES:
        (weight,) = (weight for part, weight in weights.items() if part in name)
        wanted = (weight * one[name].double() + other[name].double()) / (weight + 1)
        torch.testing.assert_close(merged[name].double(), wanted, rtol=1e-5, atol=1e-6)


def test_a_base_that_the_slices_do_not_name_is_not_averaged(folder: Path) -> None:
    sources = [{"model": name, "layer_range": [0, 3]} for name in "ab"]
    for method, values in (("linear", {"coefficients": {"a": 0.5, "b": 0.5}}), ("karcher", {})):
        found = imported(written(method, slices=[{"sources": sources}], **BASE, parameters={"weight": 0.5}))
        assert (str(found.base), [*found.models], found.values) == ("base", ["a", "b"], values)


def test_slices_are_held_to_the_number_of_layers_under_any_name(folder: Path) -> None:
    for name in "ab":
        Path(name, "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 3}))
    sources = [{"model": name, "layer_range": [0, 2]} for name in "ab"]
    with pytest.raises(InputError, match="slices: they end at layer 2 of a, which has 3 layers"):
        imported(written("linear", slices=[{"sources": sources}], parameters={"weight": 1}))


def test_a_parameter_that_mergekit_does_not_read_is_named(folder: Path) -> None:
    parameters = {"t": 0.5, "embed_slerp": True, "random_seed": 145, "scale": 1}
    config = written("slerp", "a", base_model="base", parameters=parameters, license="mit")
    assert [note.split(":")[0] for note in imported(config).notes] == ["license", "embed_slerp", "random_seed", "scale"]


@pytest.mark.parametrize("word", ["yes", "On", "true", 1.0, True])
def test_a_flag_is_whatever_mergekit_takes_for_one(folder: Path, word: Any) -> None:
    config = written("ties", *weighted(0.5, 0.5), base_model="base", parameters={"normalize": word})
    assert imported(config).values["averaging"] == "disjoint"


def test_models_as_mergekit_writes_them_in_full_and_a_base_that_slices_name(folder: Path) -> None:
    full = {"model": {"path": "a", "revision": None}, "lora": None, "override_architecture": "LlamaForCausalLM"}
    sources = [{"model": each, "layer_range": [0, 3]} for each in ("base", full)]
    found = imported(written("slerp", slices=[{"base_model": "base", "sources": sources}], parameters={"t": 0.5}))
    assert (str(found.base), list(found.models)) == ("base", ["base", "a"])
    halves = [
        {"base_model": base, "sources": [{"model": name, "layer_range": layers} for name in ("base", "a")]}
        for base, layers in (("base", [0, 1]), ("a", [1, 3]))
    ]
    with pytest.raises(InputError, match=r"slices\[0\].base_model: base: a merge of whole models has one base"):
        imported(written("slerp", slices=halves, parameters={"t": 0.5}))


def test_a_key_beside_a_models_parameters_is_named_and_one_that_is_misspelt_refused(folder: Path) -> None:
    sources = [{"model": name, "layer_range": [0, 3], "weight": 1} for name in ("base", "a")]
    of_models = {"models": [{"model": "a", "density": 0.5}, {"model": "b"}]}
    for content, named in (
        (of_models, ["models[0].density"]),
        ({"modules": {"default": of_models}}, ["models[0].density"]),
        (
            {"slices": [{"sources": sources, "residual_weight": 0.1}]},
            ["slices[0].residual_weight", "slices[0].sources[0].weight", "slices[0].sources[1].weight"],
        ),
    ):
        notes = imported(written("ties", **content, **BASE, parameters={"weight": 1})).notes
        assert notes == [f"{place}: left out; mergekit does not read it" for place in named]
    config = written("ties", models=[{"model": "a", "parameterz": {"density": 0.5}}], **BASE, parameters={"weight": 1})
    with pytest.raises(
        InputError, match=r'models\[0\].parameterz: mergekit has no such key; did you mean "parameters"'
    ):
        imported(config)


def test_the_command_brings_a_merge_over_that_merganser_merge_does(folder: Path, done: Done, refused: Refused) -> None:
    written("slerp", "a", base_model="base", parameters={"t": 0.5, "normalize": True}, tokenizer_source="base")
    said = done(folder, "import-mergekit", "config.yml", "--out", "brought")
    assert "normalize: left out; mergekit's slerp does not read it" in said
    assert "tokenizer_source: base: left out; base has no tokenizer" in said
    done(folder, "merge", "brought/merge.yaml", "--out", "merged", "--device", "cpu")
    base, tuned, merged = (load_file(folder / name / "model.safetensors") for name in ("base", "a", "merged"))
    for name in NAMES:
        one, other = base[name].double(), tuned[name].double()
        angle = torch.acos((one * other).sum() / one.norm() / other.norm())
        wanted = (one + other) * torch.sin(angle / 2) / torch.sin(angle)
        torch.testing.assert_close(merged[name].double(), wanted, rtol=1e-5, atol=1e-6)
    assert "exists already" in refused(folder, "import-mergekit", "config.yml", "--out", "brought")
