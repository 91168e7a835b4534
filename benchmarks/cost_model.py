"""What the stages cost, by formula: CPU time, memory, disk and network of models of any shapes.

The formulas count what the code does; the rates in them are one core's, measured (`benchmarks.rates`). Times are CPU
seconds on one thread with the files in memory: what a disk or a network adds is bytes over its speed.

Legend: T tasks, an M x N matrix with M >= N (a wide one costs as its transpose), K stored singular vectors, P merged
values of a model. Sizes are in bytes and without headers, which take some hundred bytes a tensor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log, prod

from merganser.checkpoints.kinds import ParameterRules, delta_shape, is_merged, parameter_kind
from merganser.checkpoints.tensors import Spec
from merganser.inputs.factors import FactorSettings
from merganser.inputs.layers import MERGE_WORK
from merganser.overlays.parts import bytes_of

FLOAT, DOUBLE = 4, 8  # bytes: deltas and factors are float32, the work on a matrix is in float64
FEW = 4  # up to a FEW-th of a matrix's eigenvectors are found one by one, more all together


@dataclass(frozen=True)
class Rates:
    """What one core does, and what starting takes."""

    start: float  # CPU s until a stage's modules are imported
    start_evaluate: float  # the same of one that builds a network
    floor: float  # anonymous bytes of a process that has imported them
    floor_evaluate: float  # the same of one that builds a network
    copy: float  # bytes/s, file to file
    read: float  # bytes/s, file to memory
    write: float  # bytes/s, memory to file
    sha256: float  # bytes/s
    norm: float  # values/s
    add: float  # values/s, elementwise in float32: two read, one new
    gram: float  # flop/s of M N**2, the half of a matrix's Gram matrix that is needed
    product: float  # flop/s of a float64 product
    values: Mapping[int, float]  # s per N**3 by N: the eigenvalues of a Gram matrix
    vectors: Mapping[int, float]  # s per N**3 by N: all its eigenvectors, beside a product
    some_vectors: float  # s per N K**2: K of them, beside a product
    drm: float  # values/s: what DRM does with the joint coordinates
    network: float  # flop/s of a network's matrices in float32, all else that it does included


# One core of AMD EPYC, measured: docs/costs-measured.md.
CORE = Rates(
    start=2.03,
    start_evaluate=6.69,
    floor=326e6,
    floor_evaluate=539e6,
    copy=1.93e9,
    read=7.38e9,
    write=1.85e9,
    sha256=1.94e9,
    norm=4.21e9,
    add=1.09e9,
    gram=41e9,
    product=45e9,
    values={256: 102e-12, 768: 53e-12, 1536: 50e-12, 3072: 65e-12},
    vectors={256: 122e-12, 768: 53e-12, 1536: 39e-12, 3072: 55e-12},
    some_vectors=1761e-12,
    drm=79e6,
    network=78e9,
)
# Assumed, not measured: the products of a GPU in a data centre.
GPU = replace(CORE, gram=10e12, product=10e12, network=20e12)


@dataclass(frozen=True)
class Model:
    """The shapes of a model: what a task's fine-tuned one and the base have in common."""

    matrices: tuple[tuple[int, int], ...]  # merged, (M, N) as a method is given them
    vectors: tuple[int, ...]  # merged values of each parameter that is not a matrix
    base: int  # bytes of the base's weights
    tuned: int  # bytes of a fine-tuned model's weights
    merged: int  # bytes of the merged parameters in the base

    @property
    def values(self) -> int:
        """Count the merged values."""
        return sum(rows * columns for rows, columns in self.matrices) + sum(self.vectors)

    @property
    def largest(self) -> int:
        """Count the values of the largest merged parameter."""
        return max(*(rows * columns for rows, columns in self.matrices), *self.vectors)


@dataclass(frozen=True)
class Cost:
    """What one process takes: CPU seconds beyond its start, bytes read and written, memory beyond the floor."""

    seconds: float
    read: int
    written: int
    memory: int


def transformer(values: float) -> Model:
    """Describe a transformer of so many values in float32, N / 64 blocks deep: of four N x N and two N x 4 N matrices.

    ViT-B and GPT-2 are just so.
    """
    blocks = max(1, round((64 / 12 * values) ** (1 / 3) / 64))
    width = max(1, round((values / (12 * blocks)) ** 0.5))
    shapes = ((width, width),) * 4 + ((4 * width, width),) * 2
    size = round(FLOAT * values)
    return Model(shapes * blocks, (), size, size, size)


def model_of(base: Mapping[str, Spec], tuned: Mapping[str, Spec], rules: ParameterRules) -> Model:
    """Describe a base and a fine-tuned model by their headers."""
    merged = {name: spec for name, spec in base.items() if is_merged(name, spec.dtype, rules)}
    kinds = {name: parameter_kind(name, spec.shape, rules) for name, spec in merged.items()}
    shapes = {name: delta_shape(spec.shape, kinds[name]) for name, spec in merged.items()}
    matrices = tuple((shape[0], shape[1]) for name, shape in shapes.items() if kinds[name] == "matrix")
    vectors = tuple(prod(shape) for name, shape in shapes.items() if kinds[name] == "vector")
    sizes = (sum(spec.nbytes for spec in specs.values()) for specs in (base, tuned, merged))
    return Model(matrices, vectors, *sizes)


# disk


def delta_bytes(model: Model) -> int:
    """Return the size of one task's deltas."""
    return FLOAT * model.values


def factor_bytes(model: Model, settings: FactorSettings) -> int:
    """Return the size of one task's factors: K vectors of both sides, all singular values, the vectors whole."""
    width = 4 if settings.dtype == "float32" else 2
    matrices = (width * settings.rank((m, n)) * (m + n) + FLOAT * min(m, n) for m, n in model.matrices)
    return sum(matrices) + FLOAT * sum(model.vectors)


def basis_bytes(model: Model, tasks: int) -> int:
    """Return the size of the bases that the tasks' matrices share, of full rank, in float64."""
    return sum(DOUBLE * min(m, tasks * n) * (m + 1) for m, n in model.matrices)


def low_rank_bytes(model: Model, counts: Mapping[tuple[int, int], int], width: int = FLOAT) -> int:
    """Return what a task keeps by so many singular triples of each matrix: `svd`, `tsv_c`, `byom_lora`."""
    matrices = (counts[m, n] * (width * (m + n) + FLOAT) for m, n in model.matrices)
    return sum(matrices) + FLOAT * sum(model.vectors)


def masked_bytes(model: Model) -> int:
    """Return what a task keeps by a bit a value and a scale a parameter: `emr`, `tall_mask`."""
    sizes = [*(m * n for m, n in model.matrices), *model.vectors]
    return sum(bytes_of(size) + FLOAT for size in sizes)


def comparison_bytes(model: Model, tasks: int, entries: int, settings: FactorSettings) -> dict[str, int]:
    """Return what a comparison writes, folder by folder, beside what entries keep per task. The cache adds nothing."""
    return {
        "data/base": model.base,
        "data/checkpoints": tasks * model.tuned,
        "data/deltas": tasks * delta_bytes(model),
        "data/svd": tasks * factor_bytes(model, settings),
        "data/joints": basis_bytes(model, tasks),
        "data/merged": entries * model.base,
    }


# network: nodes that share nothing but a DVC remote. Everything written is sent once; what a node reads and did not
# write itself it receives once.


def traffic(model: Model, tasks: int, nodes: int, settings: FactorSettings) -> dict[str, tuple[int, int]]:
    """Return the bytes that all nodes together send and receive, stage by stage; the base is fetched by one of them.

    A node fetches, extracts and decomposes its share of the tasks. One joins. Each then runs a merge, of deltas or of
    factors.
    """
    deltas, factors = delta_bytes(model), factor_bytes(model, settings)
    away = (nodes - 1) * tasks  # copies of one task's files that go to a node which did not make them
    return {
        "fetch": (model.base + tasks * model.tuned, 0),
        "extract": (tasks * deltas, (nodes - 1) * model.base),
        "decompose": (tasks * factors, 0),
        "join": (basis_bytes(model, tasks), (tasks - tasks // nodes) * deltas),
        "merge of deltas": (nodes * model.base, away * deltas),
        "merge of factors": (nodes * model.base, away * factors),
    }


# time and memory


def fetch(model: Model, rates: Rates) -> Cost:
    """Copy a fine-tuned model and hash the copy."""
    seconds = model.tuned / rates.copy + model.tuned / rates.sha256
    return Cost(seconds, 2 * model.tuned, model.tuned, 2**20)


def extract(model: Model, rates: Rates) -> Cost:
    """Read the fine-tuned model, for the norms and for the deltas; subtract the base, parameter by parameter."""
    read, written = 2 * model.merged + model.merged, delta_bytes(model)
    work = model.values * (2 / rates.norm + 1 / rates.add)
    return Cost(read / rates.read + work + written / rates.write, read, written, 3 * FLOAT * model.largest)


def decompose(model: Model, settings: FactorSettings, rates: Rates) -> Cost:
    """Factor each matrix of one task; hash what is factored, to know it again."""
    read, written = delta_bytes(model), factor_bytes(model, settings)
    work = sum(factorise_s(*_tall(shape), settings.rank(shape), rates) for shape in model.matrices)
    seconds = read / rates.read + read / rates.sha256 + work + written / rates.write
    return Cost(seconds, read, written, max(factorise_bytes(*_tall(s), settings.rank(s)) for s in model.matrices))


def factorise_s(m: int, n: int, k: int, rates: Rates) -> float:
    """Gram matrix, its eigenvalues and K vectors, the other side by one product."""
    return m * n**2 / rates.gram + eigen_s(n, k, rates) + product_s(m, n, k, rates)


def factorise_bytes(m: int, n: int, k: int) -> int:
    """The matrix, the Gram matrix with what its eigenvectors take, both sides as computed and as written."""
    return FLOAT * m * n + eigen_bytes(n, k) + (DOUBLE + FLOAT) * k * (m + n)


def eigen_s(n: int, k: int, rates: Rates) -> float:
    """All eigenvalues of an N x N Gram matrix, and K vectors: one by one if few, else all, and K turned back."""
    vectors = rates.some_vectors * n * k**2 if FEW * k <= n else between(rates.vectors, n) * n**3
    return between(rates.values, n) * n**3 + (vectors + product_s(n, n, k, rates) if k else 0)


def between(table: Mapping[int, float], n: int) -> float:
    """Look N up in a table by size, linear in log N between two sizes, and as at the nearest one beyond them."""
    sizes = sorted(table)
    if n <= sizes[0] or n >= sizes[-1]:
        return table[sizes[0] if n <= sizes[0] else sizes[-1]]
    above = next(size for size in sizes if size >= n)
    below = sizes[sizes.index(above) - 1]
    share = log(n / below) / log(above / below)
    return (1 - share) * table[below] + share * table[above]


def eigen_bytes(n: int, k: int) -> int:
    """The Gram matrix and its vectors, and as much room again as the vectors where they are found all together."""
    return DOUBLE * (n**2 + n * k) if FEW * k <= n else DOUBLE * 3 * n**2


def product_s(a: int, b: int, c: int, rates: Rates) -> float:
    """Multiply A x B by B x C in float64."""
    return 2 * a * b * c / rates.product


def merge_elementwise(model: Model, tasks: int, rates: Rates) -> Cost:
    """One pass over all tasks' values, as in `task_arithmetic`; methods with cuts over whole vectors make more."""
    work = tasks * model.values / rates.add
    return _merge(model, tasks, work, tasks * delta_bytes(model), rates)


def merge_svd(model: Model, tasks: int, settings: FactorSettings, rates: Rates) -> Cost:
    """The tasks' factors, side by side and made orthogonal, as in `tsv_m`."""
    work = sum(tsv_m_s(*_tall(shape), tasks, rates) for shape in model.matrices)
    return _merge(model, tasks, work, tasks * factor_bytes(model, settings), rates)


def merge_triples(model: Model, tasks: int, rates: Rates) -> Cost:
    """All singular triples of all tasks' deltas, each pair of tasks multiplied, as in `sftm`."""
    work = sum(sftm_s(*_tall(shape), tasks, rates) for shape in model.matrices)
    return _merge(model, tasks, work, tasks * delta_bytes(model), rates)


def tsv_m_s(m: int, n: int, tasks: int, rates: Rates) -> float:
    """Whiten R = T (N // T) left and R right vectors by their Gram matrices, and multiply out."""
    r = tasks * (n // tasks)
    sides = (m + n) * r**2 / rates.gram + 2 * (eigen_s(r, r, rates) + product_s(r, r, r, rates))
    return sides + product_s(r, r, r, rates) + product_s(r, r, n, rates) + product_s(m, r, n, rates)


def join(model: Model, tasks: int, rates: Rates) -> Cost:
    """The basis that the tasks' matrices side by side share; hash them, to know them again."""
    values = tasks * sum(m * n for m, n in model.matrices)
    work = sum(basis_s(m, n, tasks, rates) for m, n in model.matrices)
    read, written = FLOAT * values, basis_bytes(model, tasks)
    seconds = read / rates.read + read / rates.sha256 + work + written / rates.write
    return Cost(seconds, read, written, max(basis_work(m, n, tasks) for m, n in model.matrices))


def merge_joint(model: Model, tasks: int, rates: Rates) -> Cost:
    """The tasks' matrices in the basis that they share, as in `drm_h`, the basis read from the cache."""
    work = sum(drm_h_s(m, n, tasks, rates) for m, n in model.matrices) + sum(model.vectors) * tasks / rates.add
    layers = tasks * delta_bytes(model) + basis_bytes(model, tasks)
    return _merge(model, tasks, work, layers, rates, max(drm_h_work(m, n, tasks) for m, n in model.matrices))


def basis_s(m: int, n: int, tasks: int, rates: Rates) -> float:
    """The eigenvectors of the M x M Gram matrix of all tasks' rows; M may be the longer side.

    With fewer columns in all than rows: of the Gram matrix of the columns, and the other side by one product.
    """
    k, longer = sorted((m, tasks * n))
    other = product_s(m, k, k, rates) if m > tasks * n else 0
    return longer * k**2 / rates.gram + eigen_s(k, k, rates) + other


def basis_work(m: int, n: int, tasks: int) -> int:
    """The tasks' matrices, the Gram matrix and what its vectors take."""
    k = min(m, tasks * n)
    return FLOAT * tasks * m * n + eigen_bytes(k, k)


def drm_h_s(m: int, n: int, tasks: int, rates: Rates) -> float:
    """Each task's K x N coordinates, what DRM does with them, and the merged ones turned back."""
    k = min(m, tasks * n)
    return (tasks + 1) * product_s(m, k, n, rates) + tasks * k * n / rates.drm


def drm_h_work(m: int, n: int, tasks: int) -> int:
    """The tasks' matrices, the basis, the unit rows, and coordinates of one task in float64, twice."""
    k = min(m, tasks * n)
    return FLOAT * tasks * m * n + DOUBLE * m * k + FLOAT * tasks * k * n + 2 * DOUBLE * k * n


def sftm_s(m: int, n: int, tasks: int, rates: Rates) -> float:
    """Factor each task's matrix whole, and multiply the triples of each pair of tasks, in float32."""
    factored = m * n**2 / rates.gram + eigen_s(n, n, rates) + product_s(m, n, n, rates)
    return tasks * factored + tasks * (tasks - 1) / 2 * 2 * n**2 * (m + n) / rates.network


def in_work(model: Model, tasks: int) -> int:
    """Return the most that one layer takes in a merge, and what the driver expects: MERGE_WORK times its deltas."""
    return MERGE_WORK * FLOAT * tasks * model.largest


def _merge(model: Model, tasks: int, work: float, layers: int, rates: Rates, memory: int | None = None) -> Cost:
    """Read what is merged, and the base; add; write a model of the base's size."""
    read = layers + model.base
    around = read / rates.read + model.values / rates.add + model.base / rates.write
    return Cost(work + around, read, model.base, in_work(model, tasks) if memory is None else memory)


def evaluate(model: Model, tokens: int, images: int, rates: Rates) -> Cost:
    """Load a network, and run images of so many tokens each through its matrices: 2 flop a value and token."""
    flops = 2 * sum(m * n for m, n in model.matrices) * tokens * images
    return Cost(model.base / rates.read + flops / rates.network, model.base, 0, 2 * model.base)


def _tall(shape: tuple[int, int]) -> tuple[int, int]:
    return max(shape), min(shape)
