"""Seconds that the search takes, and what its parts save: ``python -m tools.bench.search``.

Three tables, all by the roofline of a device, so that nothing is timed but the search itself:

* transformers of 1 to 48 layers, made here: seconds, expansions and microseconds a candidate graph, with repeated layers
  solved once and without;
* ablations as in TASO (section 7.5) on given models: substitutions only, layouts only, sequential and joint; alpha; layers
  solved once or each by itself;
* on the same models, with custom kernels: backtracking, fusion schemes (STOF, arXiv 2506.06095, section 4.4), and schemes of what
  backtracking found. Beside the given models, a transformer with BigBird's mask.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

from mugraph.onnx import Model, load
from mugraph.onnx.fold import Folder
from mugraph.onnx.kinds import opaque_kind
from rewriter.cost import CostModel, ProfileStore, get_device
from rewriter.cost.fused import RuntimeDirections
from rewriter.kernels.proposals import KernelProposals
from rewriter.kernels.schemes.search import SchemeProposals
from rewriter.reference import bind_sizes
from rewriter.search.backtracking import Backtracking, Searched, SearchLimits
from rewriter.search.candidate import Candidate
from rewriter.search.expansion import SchemeGenerator
from rewriter.search.layers import ShortModel, lift, shorten
from rewriter.search.layouts import LayoutChooser
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from rewriter.search.strategy import BACKTRACKING, LAYOUTS, REFINED, SCHEMES, SEQUENTIAL, SUBSTITUTIONS, Strategy
from rules_db.library import open_rules
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.rule import Rule
from tools.bench.attention.cases import MaskCase

_ALPHAS = (1.0, 1.02, 1.05, 1.1)
_NEAR = 1.01
"""Of the best cost of a search: what comes so near is almost as good."""


def transformer(
    layers: int, hidden: int = 256, heads: int = 4, sequence: int = 64, *, shown: np.ndarray | None = None, half: bool = False
) -> onnx.ModelProto:
    """An encoder of equal layers, as exporters write it: attention with a guarded softmax, GELU, layer norms; random weights.

    Args:
        shown: the keys that queries see, [sequence, sequence]; ``None`` for all.
        half: of float16, else of float32.
    """
    dtype, tensor = (np.float16, TensorProto.FLOAT16) if half else (np.float32, TensorProto.FLOAT)
    generator = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(array: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(array, f"w{len(weights)}"))
        return weights[-1].name

    def random(*shape: int) -> str:
        return weight((generator.standard_normal(shape) / 16).astype(dtype))

    def op(kind: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def linear(x: str, inner: int, outer: int) -> str:
        return op("Add", op("MatMul", x, random(inner, outer)), random(outer))

    size = hidden // heads
    split = weight(np.array([1, sequence, heads, size]))
    merge = weight(np.array([1, sequence, hidden]))
    zero, scale = weight(np.zeros((), dtype)), weight(np.asarray(size**-0.25, dtype))
    seen, low = ("", "") if shown is None else (weight(shown[None, None]), weight(np.asarray(-np.inf, dtype)))
    value = "x"
    for _ in range(layers):
        query, key, content = (
            op("Transpose", op("Reshape", linear(value, hidden, hidden), split), perm=[0, 2, 1, 3]) for _ in range(3)
        )
        scores = op("MatMul", op("Mul", query, scale), op("Mul", op("Transpose", key, perm=[0, 1, 3, 2]), scale))
        soft = op("Softmax", op("Where", seen, scores, low) if seen else scores, axis=-1)
        kept = op("Where", op("IsNaN", soft), zero, soft)
        context = op("Reshape", op("Transpose", op("MatMul", kept, content), perm=[0, 2, 1, 3]), merge)
        value = op("LayerNormalization", op("Add", linear(context, hidden, hidden), value), random(hidden), random(hidden))
        inner = op("Gelu", linear(value, hidden, 4 * hidden))
        value = op("LayerNormalization", op("Add", linear(inner, 4 * hidden, hidden), value), random(hidden), random(hidden))
    shape = [1, sequence, hidden]
    graph = helper.make_graph(
        nodes,
        f"{layers} layers",
        [helper.make_tensor_value_info("x", tensor, shape)],
        [helper.make_tensor_value_info(value, tensor, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@dataclass(frozen=True, slots=True)
class SearchFigures:
    """The figures of one search.

    Attributes:
        ratio: cost of the best candidate over that of the model, as the runtime executes it, by the roofline.
        seconds: of processor time, from the model to the best candidate of the whole of it.
        warm: the same of a second search, which asks for prices anew but knows what matches.
        expanded, generated: candidates whose moves were tried, and candidate graphs made.
        searched: nodes of the graph that was searched.
        cost: microseconds of the best candidate.
        near: seconds of processor time after which one was found that is almost as good, as far as that was told.
    """

    ratio: float
    seconds: float
    warm: float
    expanded: int
    generated: int
    searched: int
    cost: float
    near: float


@dataclass(slots=True)
class _Course:
    """The costs that a search told of, each with the processor time at which it did."""

    told: list[tuple[float, float]] = field(default_factory=list)

    def tell(self, cost: float) -> None:
        self.told.append((time.process_time(), cost))

    def step(self, expanded: int, start: float, best: float) -> None:
        """As :attr:`Backtracking.progress`."""
        self.tell(best)

    def near(self, began: float) -> float:
        """Seconds since then until a cost was near the least."""
        least = min((cost for _, cost in self.told), default=0.0)
        return next((at - began for at, cost in self.told if cost <= _NEAR * least), 0.0)


def measure(
    model: Model,
    rules: Sequence[Rule],
    device: str,
    runtime: frozenset[str],
    strategy: Strategy = BACKTRACKING,
    alpha: float = 1.05,
    reuse: bool = True,
    expansions: int = 300,
    kernels: bool = False,
) -> SearchFigures:
    """Searches a model by the roofline of a device.

    Args:
        kernels: also for custom kernels.
    """
    roofline = get_device(device)
    sizes, _ = bind_sizes(model, {})
    costs = CostModel(ProfileStore(None, device), model.opset, sizes, roofline.provider, -math.inf, roofline)
    defaults = {model.values[name]: default for name, default in model.defaults.items()}
    op_types = {index: origin.op_type for index, origin in enumerate(model.origins)}
    oracle = RangeOracle(op_types, True, Folder(model, model.graph).fold, defaults)
    limits, course = SearchLimits(alpha=alpha, seconds=math.inf, expansions=expansions), _Course()
    began = time.process_time()
    stored = [rule for rule in rules if kernel_of_rule(rule) is not None]
    proposals = KernelProposals(lambda: stored)
    matches = Matches.of(rules, oracle, roofline.provider, model.opset, runtime)
    moves = Moves(matches, Prices(costs, matches.fusions))
    search = Backtracking(moves, limits, strategy, layouts=(LayoutChooser(matches),), progress=course.step)
    if kernels:
        search = replace(search, kernels=(proposals.children,), schemes=(_schemes_of(proposals, course),))
    short = shorten(model.graph, matches.depth, opaque_kind(model)) if reuse else None
    graph = model.graph if short is None else short.graph
    searched = search.run(graph)
    start = moves.start(model.graph).cost
    best = min(start, _whole(moves, short, searched).cost)
    seconds = time.process_time() - began
    near, began = course.near(began), time.process_time()
    second = replace(search, moves=moves.priced_anew(costs))
    _whole(second.moves, short, second.run(graph))
    warm = time.process_time() - began
    return SearchFigures(best / start, seconds, warm, searched.expanded, searched.generated, len(graph.references), best, near)


def _schemes_of(proposals: KernelProposals, course: _Course) -> SchemeGenerator:
    """The generator of fusion schemes for a search in which no rule is banned; it tells the costs of candidates."""

    def schemes(moves: Moves, candidate: Candidate, _: frozenset[str]) -> Iterator[Candidate]:
        for child in SchemeProposals(proposals).children(moves, candidate):
            course.tell(child.cost)
            yield child

    return schemes


def _whole(moves: Moves, short: ShortModel | None, searched: Searched) -> Candidate:
    """The best candidate of a search, of the whole model."""
    best = min((searched.start, *searched.better[:1]), key=lambda candidate: candidate.cost)
    return best if short is None else lift(moves, short, best).candidate


def _row(table: Table, *names: str, figures: SearchFigures) -> None:
    each = f"{1e3 * figures.seconds / max(figures.generated, 1):.2f}"
    table.add_row(
        *(*names, str(figures.searched), f"{figures.ratio:.3f}", f"{figures.seconds:.1f}", f"{figures.warm:.1f}"),
        *(str(figures.expanded), str(figures.generated), each),
    )


_TABLES = ("depths", "ablations", "strategies")
_FIGURES = ("nodes searched", "cost ratio", "seconds", "warm", "expansions", "candidates", "ms a candidate")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("models", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--rules", "url", metavar="URL", help="Rules; default: the shipped ones.")
@click.option("--device", default="h200", show_default=True, help="Whose roofline prices the operators.")
@click.option("--layers", default="1,2,4,8,16,32,48", show_default=True, help="Depths of the transformers that are made.")
@click.option("--each/--no-each", default=True, show_default=True, help="Also search every layer by itself.")
@click.option("--table", "tables", multiple=True, type=click.Choice(_TABLES), help="Of the tables only this one; repeatable.")
def main(models: tuple[Path, ...], url: str | None, device: str, layers: str, each: bool, tables: tuple[str, ...]) -> None:
    """Prints how the search scales, and its ablations on MODELS (on a transformer of 12 layers where none are given)."""
    console, rules = Console(width=150), open_rules(url)
    wanted = tables or _TABLES
    runtime = RuntimeDirections(rules, ProfileStore(None, device), get_device(device).provider).applied()
    console.print(f"{len(rules)} rules, {len(runtime)} of them what onnxruntime does by itself; roofline of {device}")
    named = [(path.stem, load(path)) for path in models] or [("transformer, 12 layers", load(transformer(12)))]
    if "depths" in wanted:
        console.print(_depths(rules, device, runtime, list(map(int, layers.split(","))), each))
    if "ablations" in wanted:
        console.print(_ablations(named, rules, device, runtime, each))
    if "strategies" in wanted:
        case = MaskCase("bigbird", 1, 1024)
        sparse = transformer(12, hidden=768, heads=12, sequence=case.length, shown=case.entries, half=True)
        console.print(_strategies([*named, ("BigBird, 12 layers", load(sparse))], rules, device, runtime))
    console.print(f"peak resident memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


def _depths(rules: Sequence[Rule], device: str, runtime: frozenset[str], depths: Sequence[int], each: bool) -> Table:
    """Transformers by depth."""
    table = Table("layers", "layers solved", *_FIGURES, title="transformers by depth", title_justify="left")
    for depth in depths:
        model = load(transformer(depth))
        _row(table, str(depth), "once", figures=measure(model, rules, device, runtime))
        if each:
            _row(table, str(depth), "each", figures=measure(model, rules, device, runtime, reuse=False))
    return table


def _strategies(models: Sequence[tuple[str, Model]], rules: Sequence[Rule], device: str, runtime: frozenset[str]) -> Table:
    """Backtracking, fusion schemes and both, with custom kernels."""
    columns = ("model", "strategy", "us", "cost ratio", "seconds", f"seconds to {_NEAR:g}", "warm", "candidates")
    table = Table(*columns, title="strategies with custom kernels", title_justify="left")
    for name, model in models:
        for strategy in (BACKTRACKING, SCHEMES, REFINED):
            figures = measure(model, rules, device, runtime, strategy, kernels=True)
            table.add_row(
                *(name, strategy.name, f"{figures.cost:.0f}", f"{figures.ratio:.3f}", f"{figures.seconds:.1f}"),
                *(f"{figures.near:.1f}", f"{figures.warm:.1f}", str(figures.generated)),
            )
    return table


def _ablations(
    models: Sequence[tuple[str, Model]], rules: Sequence[Rule], device: str, runtime: frozenset[str], each: bool
) -> Table:
    """What each part of the search is good for."""
    table = Table("model", "strategy", "alpha", "layers solved", *_FIGURES, title="ablations", title_justify="left")
    for name, model in models:
        for strategy in (SUBSTITUTIONS, LAYOUTS, SEQUENTIAL, BACKTRACKING):
            label = "joint" if strategy is BACKTRACKING else strategy.name
            _row(table, name, label, "1.05", "once", figures=measure(model, rules, device, runtime, strategy))
        for alpha in _ALPHAS:
            if alpha != 1.05:
                _row(table, name, "joint", f"{alpha}", "once", figures=measure(model, rules, device, runtime, alpha=alpha))
        if each:
            _row(table, name, "joint", "1.05", "each", figures=measure(model, rules, device, runtime, reuse=False))
    return table


if __name__ == "__main__":
    main()
