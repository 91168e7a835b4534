"""The size of an overlay file is known from the shapes, and an adaptive rank keeps it within its budget."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from merganser import registry
from merganser.checkpoints.kinds import Kind, ParameterRules, parameter_kind
from merganser.errors import InputError
from merganser.inputs.layers import Layer, LayerFactors
from merganser.linalg.decompositions import Factors
from merganser.overlays.budget import (
    LOW_RANK,
    THRESHOLDED,
    THRESHOLDED_VECTORS,
    Coding,
    TooFewBytesError,
    largest_share,
    plan_index,
    rate_of,
)
from merganser.overlays.files import FILE, OverlayWriter
from merganser.overlays.index import file_size
from merganser.overlays.parts import Parts
from tests.laws.layers import Layers, factored, matrices, merged, vectors

TASKS = tuple(f"task{t}" for t in range(8))
CODINGS = {"svd": LOW_RANK, "dts_t": THRESHOLDED}
both_codings = pytest.mark.parametrize("name", CODINGS)


@dataclass(frozen=True)
class Shapes:
    """A source of which only the shapes are known, and the dtype that its vectors are stored in."""

    shapes: Mapping[str, tuple[int, ...]]
    stored: torch.dtype = torch.float32
    tasks: tuple[str, ...] = TASKS
    embeddings: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.shapes)

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        return {name: parameter_kind(name, shape, ParameterRules()) for name, shape in self.shapes.items()}

    def layer(self, name: str) -> Layer:
        rows, columns = self.shapes[name]
        one = Factors(torch.zeros(rows, 1), torch.zeros(min(rows, columns)), torch.zeros(1, columns))
        return LayerFactors(name, self.tasks, (one,) * len(self.tasks), stored=self.stored)

    def __iter__(self) -> Iterator[Layer]:
        return (self.layer(name) for name in self.names)


def vit_b_32() -> Shapes:
    """Return the shapes of the image tower of CLIP ViT-B/32, as open_clip names them."""
    shapes: dict[str, tuple[int, ...]] = {
        "visual.class_embedding": (768,),
        "visual.positional_embedding": (50, 768),
        "visual.proj": (768, 512),
        "visual.conv1.weight": (768, 3 * 32 * 32),
        **{f"visual.ln_{side}.{part}": (768,) for side in ("pre", "post") for part in ("weight", "bias")},
    }
    for block in range(12):
        of = f"visual.transformer.resblocks.{block}"
        shapes |= {f"{of}.ln_{n}.{part}": (768,) for n in (1, 2) for part in ("weight", "bias")}
        for name, rows, columns in (
            ("attn.in_proj_", 2304, 768),
            ("attn.out_proj.", 768, 768),
            ("mlp.c_fc.", 3072, 768),
            ("mlp.c_proj.", 768, 3072),
        ):
            shapes |= {f"{of}.{name}weight": (rows, columns), f"{of}.{name}bias": (rows,)}
    return Shapes(shapes)


NET = Shapes(
    {
        "blocks.0.weight": (40, 30),
        "blocks.0.bias": (40,),
        "blocks.1.weight": (24, 64),
        "small.weight": (2, 9),
        "scale": (),
        "positions": (5, 6),
    }
)


def layers_of(source: Shapes, rank: int | None = None, unchanged: str = "", decomposed: bool = True) -> list[Layer]:
    """Draw deltas of these shapes, of full rank or the given one; one task may have none."""
    of_matrices: Any = factored if decomposed else matrices
    generator, found = torch.Generator().manual_seed(0), []
    for name, shape in source.shapes.items():
        deltas = torch.randn(len(source.tasks), *shape, generator=generator)
        if rank is not None and source.kinds[name] == "matrix":
            low = min(rank, *shape)
            deltas = deltas[:, :, :low] @ deltas[:, :low, :]
        if unchanged:
            deltas[source.tasks.index(unchanged)] = 0
        make = of_matrices if source.kinds[name] == "matrix" else vectors
        found.append(make(list(deltas), name))
    return found


def written(folder: Path, method: str, layers: list[Layer], **values: object) -> int:
    """Merge and write the parts; return the size of the file."""
    with OverlayWriter(folder, layers[0].tasks) as writer:
        for layer, parts in zip(layers, merged(method, *layers, **values), strict=True):
            assert isinstance(parts, Parts)
            writer.add(layer.name, parts, Layers(layers).shapes[layer.name])
    return (folder / FILE).stat().st_size


@both_codings
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 1.0])
def test_the_size_from_shapes_is_that_of_the_file(name: str, share: float, tmp_path: Path) -> None:
    found = written(tmp_path, name, layers_of(NET), rank_fraction=share)
    assert found == file_size(plan_index(NET, CODINGS[name], share))


@both_codings
@pytest.mark.parametrize(("rank", "unchanged"), [(3, ""), (None, "task5"), (1, "task0")])
def test_a_file_of_lower_ranks_and_unchanged_tasks_is_not_larger(
    name: str, rank: int | None, unchanged: str, tmp_path: Path
) -> None:
    found = written(tmp_path, name, layers_of(NET, rank, unchanged), rank_fraction=0.5)
    assert found <= file_size(plan_index(NET, CODINGS[name], 0.5))


def test_half_precision_halves_the_factors() -> None:
    single, half = (file_size(plan_index(vit_b_32(), LOW_RANK, 0.3, dtype)) for dtype in (torch.float32, torch.float16))
    vectors = sum(torch.Size(s).numel() for n, s in vit_b_32().shapes.items() if vit_b_32().kinds[n] == "vector")
    assert half - 8 * 4 * vectors == pytest.approx((single - 8 * 4 * vectors) / 2, rel=0.001)


@pytest.mark.parametrize(
    ("coding", "share", "measured", "printed"),
    [
        (THRESHOLDED, 0.3, 0.0252, 0.0368),  # DTS-T and DTS-D; the paper counts three bits an element
        (THRESHOLDED, 0.117, 0.0098, 0.01),  # DTS-T* and DTS-D*
        (LOW_RANK, 1 / 8, 0.1682, 0.1682),  # TSV-C of eight tasks
    ],
)
def test_the_additional_memory_of_a_vit_b_32(coding: Coding, share: float, measured: float, printed: float) -> None:
    rate = rate_of(plan_index(vit_b_32(), coding, share), vit_b_32())
    assert rate == pytest.approx(measured, abs=5e-5)
    assert rate <= printed


@pytest.mark.parametrize(
    ("coding", "ratio"), [(THRESHOLDED, 0.01), (THRESHOLDED, 0.03), (THRESHOLDED_VECTORS, 0.03), (LOW_RANK, 0.05)]
)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_an_adaptive_rank_is_the_largest_within_its_budget_on_a_vit_b_32(
    coding: Coding, ratio: float, stored: torch.dtype
) -> None:
    tower = Shapes(vit_b_32().shapes, stored)
    share = largest_share(tower, coding, ratio)
    assert rate_of(plan_index(tower, coding, share, stored), tower) <= ratio
    assert rate_of(plan_index(tower, coding, share + 1 / 768, stored), tower) > ratio
    assert 0 < share <= coding.share_needed(8, rank_fraction="adaptive", ratio=ratio)


@pytest.mark.parametrize("name", ["svd", "dts_t", "dts_d", "dts_unseen"])
@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.9])
def test_an_adaptive_file_stays_within_its_ratio(name: str, ratio: float, tmp_path: Path) -> None:
    entries = sum(torch.Size(shape).numel() for shape in NET.shapes.values())
    size = written(tmp_path, name, layers_of(NET), rank_fraction="adaptive", ratio=ratio)
    assert size / len(TASKS) <= ratio * 4 * entries


@pytest.mark.parametrize("name", ["byom_lora", "t_switch", "byom_fft"])
@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.9])
def test_what_a_method_is_fitted_by_is_the_most_that_stays_within_a_budget(
    name: str, ratio: float, tmp_path: Path
) -> None:
    within, entries = registry.get(name).within, sum(torch.Size(shape).numel() for shape in NET.shapes.values())
    assert within
    values = within.values(NET, ratio)
    layers = layers_of(NET, decomposed=name == "byom_lora")

    def rate(folder: str, **fitted: object) -> float:
        (tmp_path / folder).mkdir()
        return written(tmp_path / folder, name, layers, **fitted) / len(TASKS) / (4 * entries)

    assert tuple(values) == within.parameters
    assert rate("fitted", **values) <= ratio
    (parameter,), (value,) = values, values.values()
    more = value + 1 if parameter == "k" else min(1.0, value + 0.02)
    assert rate("more", **{parameter: more}) > ratio or value in (30, 1.0)


@pytest.mark.parametrize("name", ["byom_lora", "t_switch", "byom_fft"])
def test_a_method_that_does_not_fit_says_what_it_takes_at_least(name: str) -> None:
    within = registry.get(name).within
    assert within
    with pytest.raises(TooFewBytesError, match=r"(one triple of every matrix takes|masks alone take) 0\.\d+ of"):
        within.values(NET, 0.02)


def test_every_method_with_parts_says_how_it_spends_fewer_bytes_or_has_none_to_spare() -> None:
    methods = [registry.get(name) for name in registry.names()]
    kept = [each for each in methods if each.overlay and each.at_run_time is None]
    assert {each.name for each in kept if each.within is None} == {
        "bitdelta",
        "individual",
        "emr",
        "tall_mask",
        "tsv_c",
    }
    for each in kept:
        assert set(each.within.parameters if each.within else ()) <= set(each.parameters.model_fields)


@both_codings
def test_a_fixed_rank_fraction_is_kept_as_it_is(name: str) -> None:
    assert CODINGS[name].share(NET, rank_fraction=0.3, ratio=1e-6) == 0.3
    assert CODINGS[name].share_needed(8, rank_fraction=0.3, ratio=1e-6) == 0.3


@both_codings
def test_a_ratio_that_nothing_fits_is_refused_with_the_least_that_does(name: str) -> None:
    with pytest.raises(InputError, match=r"ratio: 0\.001 is too small: .* take at least 0\.\d+ of") as refused:
        largest_share(NET, CODINGS[name], 0.001)
    least = float(str(refused.value).split("at least ")[1].split()[0])
    assert largest_share(NET, CODINGS[name], 1.001 * least) >= 0


@pytest.mark.parametrize("name", ["svd", "dts_t", "dts_d", "dts_unseen"])
@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (
            {"rank_fraction": "adaptiv"},
            "rank_fraction: expected a number above 0 and up to 1, or adaptive, got 'adaptiv'",
        ),
        ({"rank_fraction": 0.0}, "rank_fraction"),
        ({"ratio": 0}, "ratio"),
    ],
)
def test_what_is_no_rank_and_no_ratio_is_refused(name: str, values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=rf"entry\.{complaint}"):
        registry.get(name).validate("entry", values)
