"""The cost model says what the stages write to the byte, and what they compute as it can be counted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import cost_model as costs
from benchmarks import llama
from benchmarks.cost_model import Model, Rates
from benchmarks.costs import Setting, described_model, payload, weight
from benchmarks.decompose_once import allocated
from benchmarks.projects import write_project
from merganser import registry
from merganser.inputs.factors import FactorSettings
from merganser.inputs.layers import LayerDeltas, LayerFactors
from merganser.linalg import lapack
from merganser.linalg.decompositions import Factors
from merganser.linalg.joint import joint
from merganser.linalg.svd import factorise
from merganser.tasks import decompose, extract, fetch, join, merge
from tests.tasks.comparison import inside

INFINITE = float("inf")
NOTHING: dict[str, Any] = {
    **dict.fromkeys(("copy", "read", "write", "sha256", "norm", "add", "gram", "product", "drm", "network"), INFINITE),
    **dict.fromkeys(("start", "start_evaluate", "floor", "floor_evaluate", "some_vectors"), 0.0),
    "values": {1: 0.0},
    "vectors": {1: 0.0},
}
FLOPS = Rates(**NOTHING | {"product": 1.0})  # a second a flop of a product, and nothing else takes time
GRAM_FLOPS = Rates(**NOTHING | {"gram": 1.0})
METHODS = ("tsv_m", "tsv_c", "svd", "emr", "drm_h")
TASKS, BLOCKS = 2, 1  # no square matrices side by side: their smallest singular values are rounding
SETTINGS = FactorSettings(0.5)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a small project that the stages have carried to the merges."""
    folder = tmp_path_factory.mktemp("project")
    names = write_project(folder, 128, BLOCKS, TASKS, METHODS, images=3)
    with inside(folder):
        fetch.main(["base"])
        for name in names:
            fetch.main(["task", name])
            extract.main([name])
            decompose.main([name])
        join.main(["rows"])
        for method in METHODS:
            merge.main([method])
    return folder


@pytest.fixture(scope="module")
def model(project: Path) -> Model:
    """Give its shapes."""
    return described_model(project)


def test_files_have_the_predicted_sizes_but_for_their_headers(project: Path, model: Model) -> None:
    data = project / "data"
    assert payload(data / "checkpoints/task1/model.safetensors") == model.tuned
    assert payload(data / "base/model.safetensors") == payload(data / "merged/tsv_m/model.safetensors") == model.base
    assert payload(data / "deltas/task1.safetensors") == costs.delta_bytes(model) == 4 * model.values
    assert payload(data / "svd/task1") == costs.factor_bytes(model, SETTINGS)
    assert payload(data / "joints/rows/bases") == costs.basis_bytes(model, TASKS)


def test_what_a_method_keeps_of_the_tasks_has_the_predicted_size(project: Path, model: Model) -> None:
    merged, share = project / "data/merged", {shape: min(shape) // TASKS for shape in model.matrices}
    assert payload(merged / "tsv_c/overlays.safetensors") == TASKS * costs.low_rank_bytes(model, share)
    three_tenths = {shape: int(0.3 * min(shape)) for shape in model.matrices}
    assert payload(merged / "svd/overlays.safetensors") == TASKS * costs.low_rank_bytes(model, three_tenths)
    assert payload(merged / "emr/overlays.safetensors") == TASKS * costs.masked_bytes(model)


def test_a_comparison_writes_the_predicted_bytes_but_for_headers_and_notes(project: Path, model: Model) -> None:
    predicted = costs.comparison_bytes(model, TASKS, len(METHODS), SETTINGS)
    for folder in ("data/base", "data/checkpoints", "data/deltas", "data/svd"):
        assert predicted[folder] <= weight(project / folder) <= 1.01 * predicted[folder]


def test_two_bytes_a_number_halve_the_vectors_of_the_factors(model: Model) -> None:
    half = FactorSettings(0.5, "float16")
    whole = costs.factor_bytes(model, SETTINGS)
    values = 4 * (sum(min(shape) for shape in model.matrices) + sum(model.vectors))
    assert 2 * (costs.factor_bytes(model, half) - values) == whole - values


def matrix(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def products(function: Callable[[], Any]) -> int:
    """Count the flop of all matrix products but those that BLAS and LAPACK are called for directly."""
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.fixture
def grams(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Hear of each Gram matrix that is computed: M N**2."""
    heard: list[int] = []
    call = lapack._call

    def listening(name: str, *arguments: Any) -> None:
        if name == "dsyrk":
            _, _, size, rows, *_ = arguments
            heard.append(rows * size**2)
        call(name, *arguments)

    monkeypatch.setattr(lapack, "_call", listening)
    return heard


def test_factoring_a_matrix_takes_the_flop_of_the_formula(grams: list[int]) -> None:
    for shape in ((48, 20), (20, 48), (30, 30)):
        tall = max(shape), min(shape)
        grams.clear()
        counted = products(lambda shape=shape: factorise(matrix(*shape), 12))  # type: ignore[misc]
        turned_back = costs.product_s(tall[1], tall[1], 12, FLOPS)  # by LAPACK
        assert counted == costs.factorise_s(*tall, 12, FLOPS) - turned_back
        assert sum(grams) == costs.factorise_s(*tall, 12, GRAM_FLOPS)


def test_whitening_the_tasks_vectors_takes_the_flop_of_the_formula(grams: list[int]) -> None:
    tasks, (rows, columns) = 3, (48, 30)
    factors = tuple(Factors(*factorise(matrix(rows, columns, seed))) for seed in range(tasks))
    layer = LayerFactors("layer", ("a", "b", "c"), factors)
    method = registry.get("tsv_m")
    grams.clear()
    counted = products(lambda: method.function(layer))
    turned_back = 2 * costs.product_s(columns, columns, columns, FLOPS)
    assert counted == costs.tsv_m_s(rows, columns, tasks, FLOPS) - turned_back
    assert sum(grams) == costs.tsv_m_s(rows, columns, tasks, GRAM_FLOPS)


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
def test_a_joint_merge_takes_the_flop_of_the_formula(shape: tuple[int, int], grams: list[int]) -> None:
    deltas = torch.stack([matrix(*shape, seed) for seed in range(3)])
    layer = LayerDeltas("layer", "matrix", ("a", "b", "c"), deltas)
    method = registry.get("drm_h")
    counted = products(lambda: method.function(layer))
    assert counted == costs.drm_h_s(*shape, 3, FLOPS)
    grams.clear()
    joint(deltas)
    assert sum(grams) == costs.basis_s(*shape, 3, GRAM_FLOPS)


def test_time_grows_with_the_layers_and_the_tasks(model: Model) -> None:
    rates = Rates(**NOTHING | {"read": 1e9, "add": 1e9, "values": {1: 1e-9}, "product": 1e9, "gram": 1e9})
    twice = Model(2 * model.matrices, 2 * model.vectors, 2 * model.base, 2 * model.tuned, 2 * model.merged)
    for cost in (costs.extract, lambda m, r: costs.decompose(m, SETTINGS, r), lambda m, r: costs.join(m, TASKS, r)):
        assert cost(twice, rates).seconds == pytest.approx(2 * cost(model, rates).seconds)
        assert cost(twice, rates).memory == cost(model, rates).memory
    one, two, three = (costs.merge_elementwise(model, tasks, rates).seconds for tasks in (1, 2, 3))
    assert three - two == pytest.approx(two - one)


def test_a_rate_between_two_sizes_lies_between_theirs() -> None:
    table = {100: 3.0, 400: 1.0}
    assert [costs.between(table, size) for size in (50, 100, 200, 400, 9000)] == pytest.approx([3, 3, 2, 1, 1])


def test_every_byte_that_a_merge_of_all_tasks_reads_and_did_not_make_is_received(model: Model) -> None:
    found = costs.traffic(model, tasks=4, nodes=2, settings=SETTINGS)
    assert found["merge of deltas"] == (2 * model.base, 2 * 2 * costs.delta_bytes(model))
    assert costs.traffic(model, 4, 1, SETTINGS)["merge of deltas"][1] == 0


def test_the_example_has_the_published_number_of_parameters() -> None:
    large = llama.model()
    assert large.values == 68_976_648_192
    assert large.tuned == 2 * large.values
    assert large.largest == llama.VOCABULARY * llama.HIDDEN


def test_the_example_is_worked_out_from_any_rates() -> None:
    rates = Rates(
        **NOTHING
        | dict.fromkeys(("copy", "read", "write", "sha256", "norm", "add", "gram", "product", "drm", "network"), 1e9)
        | {"values": {256: 1e-10}, "vectors": {256: 1e-10}}
    )
    text = llama.in_words(rates)
    assert not {"inf", "nan"} & set(text.replace("|", " ").split())
    assert text.count("\n| ") > 25


def test_a_file_with_several_names_is_allocated_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(bytes(range(256)) * 4096)
    before = allocated(tmp_path)
    (tmp_path / "other").hardlink_to(tmp_path / "one")
    assert allocated(tmp_path) == before >= 2**20


def test_three_sizes_of_each_are_measured() -> None:
    from benchmarks.costs import VARIED

    assert all(len(settings) == 3 and Setting() in settings for settings in VARIED.values())
