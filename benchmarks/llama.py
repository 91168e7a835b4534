"""What merging eight models of 70 billion parameters on eight nodes would cost, by the formulas of the cost model.

The shapes are Llama 2 70B's (Touvron et al., 2023, arXiv:2307.09288), as the published model's `config.json` has them.
"""

from dataclasses import dataclass

from benchmarks import cost_model as costs
from benchmarks.cost_model import Model, Rates
from benchmarks.harness import as_table
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.tensors import Spec
from merganser.inputs.factors import FactorSettings
from merganser.workers import SHARE

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KEY_VALUE_HEADS, VOCABULARY = 80, 8192, 28672, 64, 8, 32000
TASKS = NODES = 8
RANKS = (FactorSettings(1 / TASKS), FactorSettings(0.3))
GB, HOUR = 1e9, 3600
TOKENS = 512  # of an example that a model is evaluated on


@dataclass(frozen=True)
class Node:
    """A machine that the example assumes; its cores are like the measured one."""

    cores: int = 64
    memory: float = 512e9  # bytes
    network: float = 1.25e9  # bytes/s: 10 Gbit/s
    disk: float = 2e9  # bytes/s, read or written


def specs(
    layers: int = LAYERS,
    hidden: int = HIDDEN,
    intermediate: int = INTERMEDIATE,
    narrow: int = HIDDEN // HEADS * KEY_VALUE_HEADS,
    vocabulary: int = VOCABULARY,
) -> dict[str, Spec]:
    """Return every parameter's name, shape and dtype; `narrow`: the outputs of the maps to keys and to values."""
    block = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (narrow, hidden),
        "self_attn.v_proj": (narrow, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (vocabulary, hidden),
        "model.norm": (hidden,),
        "lm_head": (vocabulary, hidden),
    }
    shapes |= {f"model.layers.{layer}.{name}": shape for layer in range(layers) for name, shape in block.items()}
    return {f"{name}.weight": Spec("BF16", shape) for name, shape in shapes.items()}


def model() -> Model:
    """Return the model's shapes, all its parameters merged."""
    return costs.model_of(specs(), specs(), ParameterRules())


def at_once(node: Node, work: int) -> int:
    """Count the layers that a node works on at once, each of which takes so many bytes."""
    return max(1, min(node.cores, int(node.memory * SHARE / work)))


def hours(core_seconds: float, threads: int, moved: float, node: Node) -> str:
    """Write the hours on a node: computing, and reading and writing its disk."""
    return f"{core_seconds / threads / HOUR + moved / node.disk / HOUR:.1f}"


def in_words(rates: Rates, node: Node | None = None) -> str:
    """Work the example out, as Markdown."""
    node, large = node or Node(), model()
    parts = (sizes(large), stages(large, rates, node), joint_decompositions(rates), carried(large, node))
    return "\n\n".join(parts)


def sizes(large: Model) -> str:
    """List what lies on disk and in memory."""
    halves = [FactorSettings(rank.rank_fraction, "float16") for rank in RANKS]
    caches = {
        f"factors of a task, {rank.rank_fraction:.3g} of the rank, {rank.dtype}": costs.factor_bytes(large, rank)
        for rank in (*RANKS, *halves)
    }
    kept = {shape: FactorSettings(1 / TASKS).rank(shape) for shape in large.matrices}
    whole = costs.comparison_bytes(large, TASKS, TASKS, RANKS[0])
    rows = {
        f"{large.values / 1e9:.2f} billion parameters, a checkpoint in bfloat16": large.tuned,
        "the same in float32; a task's deltas": costs.delta_bytes(large),
        **caches,
        "bases that the tasks share, rows, float64": costs.basis_bytes(large, TASKS),
        "what `tsv_c` keeps of a task": costs.low_rank_bytes(large, kept),
        "what `emr` keeps of a task": costs.masked_bytes(large),
        f"a comparison of {TASKS} entries": sum(whole.values()),
        f"largest parameter of {TASKS} tasks in float32": 4 * TASKS * large.largest,
        "the most that it takes in work, with all that a method makes of it": costs.in_work(large, TASKS),
    }
    return as_table(["", "GB"], [(name, f"{size / GB:.1f}") for name, size in rows.items()])


def stages(large: Model, rates: Rates, node: Node) -> str:
    """List each stage's core-hours, and its hours on one node."""
    rank, merging = RANKS[0], at_once(node, costs.in_work(large, TASKS))
    decomposing = at_once(node, max(costs.MERGE_WORK * 4 * m * n for m, n in large.matrices))
    found = {
        "fetch": (costs.fetch(large, rates), 1),
        "extract": (costs.extract(large, rates), 1),
        f"decompose, {rank.rank_fraction:.3g} of the rank": (costs.decompose(large, rank, rates), decomposing),
        "merge, elementwise (`task_arithmetic`)": (costs.merge_elementwise(large, TASKS, rates), merging),
        "merge of factors (`tsv_m`)": (costs.merge_svd(large, TASKS, rank, rates), merging),
        "merge of all triples (`sftm`)": (costs.merge_triples(large, TASKS, rates), merging),
        "join, rows": (costs.join(large, TASKS, rates), merging),
        "merge in the joint basis (`drm_h`)": (costs.merge_joint(large, TASKS, rates), merging),
        f"evaluate 1000 examples of {TOKENS} tokens": (costs.evaluate(large, TOKENS, 1000, rates), node.cores),
    }
    rows = [
        (
            stage,
            f"{cost.seconds / HOUR:.2f}",
            f"{threads}",
            hours(cost.seconds, threads, cost.read + cost.written, node),
            f"{(cost.read + cost.written) / GB:.0f}",
        )
        for stage, (cost, threads) in found.items()
    ]
    return as_table(["stage", "core-hours", "at once", "hours on a node", "read and written, GB"], rows)


def joint_decompositions(rates: Rates) -> str:
    """List what the largest of a block's matrices takes of all tasks together, on one core."""
    m, n, pairs = INTERMEDIATE, HIDDEN, TASKS * (TASKS - 1) // 2
    ways: dict[str, tuple[str, float, float]] = {
        "a T-th of each task's triples (`tsv_m`)": (
            f"{n}, twice",
            costs.eigen_bytes(n, n),
            costs.tsv_m_s(m, n, TASKS, rates),
        ),
        "rows of the transpose (`drm_v`, without the merge)": (
            f"{n}",
            costs.eigen_bytes(n, n),
            costs.basis_s(n, m, TASKS, rates),
        ),
        "rows (`drm_h`, `knots`, without the merge)": (
            f"{m}",
            costs.eigen_bytes(m, m),
            costs.basis_s(m, n, TASKS, rates),
        ),
        "all tasks' triples (`sftm`)": (f"{n}, {TASKS} times", 4 * pairs * n**2, costs.sftm_s(m, n, TASKS, rates)),
    }
    rows = [(way, n_of, f"{size / GB:.1f}", f"{work / HOUR:.2f}") for way, (n_of, size, work) in ways.items()]
    heads = [
        f"{m} x {n}, {TASKS} tasks",
        "eigenvectors of N x N, N",
        "GB for them, or for the pairs",
        "hours of a core",
    ]
    return as_table(heads, rows)


def carried(large: Model, node: Node) -> str:
    """List what goes over the network between the nodes and the remote that they share; one node joins."""
    rows = [
        (
            stage,
            f"{sent / GB:.0f}",
            f"{received / GB:.0f}",
            f"{max(sent, received) / (1 if stage == 'join' else NODES) / node.network / HOUR:.2f}",
        )
        for stage, (sent, received) in costs.traffic(large, TASKS, NODES, RANKS[0]).items()
    ]
    return as_table([f"stage, {NODES} nodes", "sent, GB", "received, GB", "hours a node"], rows)
