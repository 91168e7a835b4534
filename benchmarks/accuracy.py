"""How exact merges of one large layer are, and how large the factor cache is: `python -m benchmarks.accuracy`.

The layer has the size of the largest of ViT-B/32, its deltas low rank and noise. Errors are distances of merged deltas
over the norm of the formula's, computed in float64 by the plain programs.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.models import NOISE, RANK, STEP, TOWER, make_models
from benchmarks.plain import spectral
from benchmarks.plain.states import State
from merganser import registry
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint
from merganser.inputs.deltas import DeltaFile, extract
from merganser.inputs.factors import DTYPES, FactorSettings, decompose
from merganser.inputs.layers import LayerDeltas, LayerFactors
from merganser.linalg.joint import polar
from merganser.linalg.svd import factorise
from merganser.workers import one_blas_thread

SHAPE, TASKS = (3072, 768), 8
NAME = "mlp.c_fc.weight"
PLAIN: dict[str, Callable[[list[State]], State]] = {
    "tsv_m": spectral.tsv_m,
    "iso_c": spectral.iso_c,
    "iso_cts": spectral.iso_cts,
}
SHARES = (0.05, 1 / TASKS, 0.3, 1.0)
MIB = 2**20


def main() -> None:
    """Print both tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skip-sizes", action="store_true", help="leave out the sizes, for which a task is decomposed")
    options = parser.parse_args()
    deltas = drawn()
    print(
        "| merge | plain float32 | ours | ours, vectors in float16 | ours, vectors in bfloat16 |\n|---|---|---|---|---|"
    )
    with one_blas_thread(), torch.inference_mode():
        for name in PLAIN:
            print(as_row(f"`{name}`", errors_of(name, deltas)), flush=True)
        print(as_row("whitening alone, of bases 1 % apart", whitening_errors()))
    if not options.skip_sizes:
        print("\n| share | float32 vectors, MiB | float16 or bfloat16, MiB |\n|---|---|---|")
        with tempfile.TemporaryDirectory(prefix="merganser-accuracy-") as folder:
            for line in sizes(Path(folder)):
                print(line, flush=True)


def drawn() -> Tensor:
    """Draw the tasks' deltas of the layer (T, M, N) in float32."""
    generator = torch.Generator().manual_seed(0)
    rows, columns = SHAPE
    left = torch.randn(TASKS, rows, RANK, generator=generator)
    right = torch.randn(TASKS, RANK, columns, generator=generator)
    noise = torch.randn(TASKS, rows, columns, generator=generator)
    return STEP * (left @ right / RANK**0.5 + NOISE * noise)


def errors_of(name: str, deltas: Tensor) -> list[float]:
    """Return the errors of the plain program in float32, of ours, and of ours from vectors in half precision."""
    exact = plain(name, deltas.double())
    found = [plain(name, deltas), ours(name, deltas)]
    if registry.get(name).factored:
        found += [ours(name, deltas, DTYPES[dtype]) for dtype in ("float16", "bfloat16")]
    return [far(merged, exact) for merged in found]


def plain(name: str, deltas: Tensor) -> Tensor:
    """Merge as the plain program does, in the deltas' dtype."""
    return PLAIN[name]([{NAME: delta} for delta in deltas])[NAME]


def ours(name: str, deltas: Tensor, stored: torch.dtype = torch.float32) -> Tensor:
    """Merge by a registered method; `stored` is the dtype of the singular vectors it reads, if it reads them."""
    method = registry.get(name)
    values, tasks = method.validate(name, {}), tuple(f"task{t}" for t in range(len(deltas)))
    layer: LayerDeltas | LayerFactors = LayerDeltas(NAME, "matrix", tasks, deltas)
    if method.factored:
        share = method.rank_fraction(len(tasks), **values) if method.rank_fraction else 1.0
        rank = FactorSettings(share).rank(SHAPE)
        factors = (factorise(delta, rank) for delta in deltas)
        rounded = tuple(f._replace(u=f.u.to(stored).float(), vh=f.vh.to(stored).float()) for f in factors)
        layer = LayerFactors(NAME, tasks, rounded)
    merged = method.function(layer)
    assert isinstance(merged, Tensor)
    return merged


def whitening_errors() -> list[float]:
    """Whiten bases that differ little, as related tasks' do; return the errors of the plain way in float32 and ours."""
    generator = torch.Generator().manual_seed(0)
    rows, columns = SHAPE
    shared = torch.randn(rows, columns // TASKS, generator=generator, dtype=torch.float64)
    apart = (shared + 1e-2 * torch.randn(shared.shape, generator=generator) for _ in range(TASKS))
    stack = torch.cat([torch.linalg.qr(basis).Q for basis in apart], 1).float()
    exact = spectral.polar(stack.double())
    return [far(spectral.polar(stack), exact), far(polar(stack), exact)]


def far(merged: Tensor, exact: Tensor) -> float:
    """Return the distance over the second's norm."""
    return float((merged.double() - exact).norm() / exact.norm())


def as_row(name: str, errors: list[float]) -> str:
    """Write one line of the first table."""
    cells = [f"{error:.0e}" for error in errors] + ["–"] * (4 - len(errors))
    return f"| {name} | {' | '.join(cells)} |"


def sizes(folder: Path) -> list[str]:
    """Compute what the factors of one ViT-B/32 take on disk by share and dtype, and decompose one to see."""
    base, models = make_models(folder, tasks=1)
    ((task, model),) = models.items()
    rules = ParameterRules(merged=(f"{TOWER}*",))
    extract(open_checkpoint(base), open_checkpoint(model), rules, task, folder / "deltas")
    deltas = DeltaFile(folder / "deltas")
    lines = []
    for share in SHARES:
        single, half = (computed(deltas, share, dtype) / MIB for dtype in ("float32", "float16"))
        lines.append(f"| {share:g} | {single:.0f} | {half:.0f} |")
    for share, dtype in ((0.3, "float32"), (1 / TASKS, "float16")):
        started = time.process_time()
        decompose(deltas, FactorSettings(share, dtype), folder / "svd")
        spent = time.process_time() - started
        written = sum(path.stat().st_size for path in (folder / "svd").iterdir()) / MIB
        lines.append(f"\n{share:g} in {dtype}, decomposed: {written:.0f} MiB, {spent:.1f} s of CPU time")
    return lines


def computed(deltas: DeltaFile, share: float, dtype: str) -> int:
    """Return the bytes of one task's factors and vectors, file headers left out."""
    total = 0
    for name, kind in deltas.kinds.items():
        rows, *rest = deltas.shape(name) or (1,)
        columns = torch.Size(rest).numel()
        if kind == "vector":
            total += 4 * rows * columns
        else:
            settings = FactorSettings(share, dtype)
            total += 4 * min(rows, columns)
            total += settings.rank((rows, columns)) * (rows + columns) * DTYPES[dtype].itemsize
    return total


if __name__ == "__main__":
    main()
