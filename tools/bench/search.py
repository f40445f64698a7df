"""Seconds that the search takes, and what its parts save: ``python -m tools.bench.search``.

Two tables, all by the roofline of a device, so that nothing is timed but the search itself:

* transformers of 1 to 48 layers, made here: seconds, expansions and microseconds a candidate graph, with repeated layers
  solved once and without;
* ablations as in TASO (section 7.5) on given models: substitutions only, layouts only, sequential and joint; alpha; layers
  solved once or each by itself.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

from mugraph.onnx import Model, load
from mugraph.onnx.fold import Folder
from rewriter.cost import CostModel, ProfileStore, get_device
from rewriter.cost.fused import runtime_directions
from rewriter.reference import bind_sizes
from rewriter.search.backtracking import Backtracking, Searched, SearchLimits
from rewriter.search.candidate import Candidate
from rewriter.search.layers import ShortModel, lift, opaque_kind, shorten
from rewriter.search.layouts import LayoutChooser
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from rewriter.search.strategy import BACKTRACKING, LAYOUTS, SEQUENTIAL, SUBSTITUTIONS, Strategy
from rules_db.library import open_rules
from rules_db.trust.rule import Rule

_ALPHAS = (1.0, 1.02, 1.05, 1.1)


def transformer(layers: int, hidden: int = 256, heads: int = 4, sequence: int = 64) -> onnx.ModelProto:
    """An encoder of equal layers, as exporters write it: attention with a guarded softmax, GELU, layer norms; random weights."""
    generator = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(array: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(array, f"w{len(weights)}"))
        return weights[-1].name

    def random(*shape: int) -> str:
        return weight((generator.standard_normal(shape) / 16).astype(np.float32))

    def op(kind: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def linear(x: str, inner: int, outer: int) -> str:
        return op("Add", op("MatMul", x, random(inner, outer)), random(outer))

    size = hidden // heads
    split = weight(np.array([1, sequence, heads, size]))
    merge = weight(np.array([1, sequence, hidden]))
    zero, scale = weight(np.zeros((), np.float32)), weight(np.asarray(size**-0.25, np.float32))
    value = "x"
    for _ in range(layers):
        query, key, content = (
            op("Transpose", op("Reshape", linear(value, hidden, hidden), split), perm=[0, 2, 1, 3]) for _ in range(3)
        )
        scores = op("MatMul", op("Mul", query, scale), op("Mul", op("Transpose", key, perm=[0, 1, 3, 2]), scale))
        soft = op("Softmax", scores, axis=-1)
        kept = op("Where", op("IsNaN", soft), zero, soft)
        context = op("Reshape", op("Transpose", op("MatMul", kept, content), perm=[0, 2, 1, 3]), merge)
        value = op("LayerNormalization", op("Add", linear(context, hidden, hidden), value), random(hidden), random(hidden))
        inner = op("Gelu", linear(value, hidden, 4 * hidden))
        value = op("LayerNormalization", op("Add", linear(inner, 4 * hidden, hidden), value), random(hidden), random(hidden))
    shape = [1, sequence, hidden]
    graph = helper.make_graph(
        nodes,
        f"{layers} layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
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
    """

    ratio: float
    seconds: float
    warm: float
    expanded: int
    generated: int
    searched: int


def measure(
    model: Model,
    rules: Sequence[Rule],
    device: str,
    runtime: frozenset[str],
    strategy: Strategy = BACKTRACKING,
    alpha: float = 1.05,
    reuse: bool = True,
    expansions: int = 300,
) -> SearchFigures:
    """Searches a model by the roofline of a device."""
    roofline = get_device(device)
    sizes, _ = bind_sizes(model, {})
    costs = CostModel(ProfileStore(None, device), model.opset, sizes, roofline.provider, -math.inf, roofline)
    defaults = {model.values[name]: default for name, default in model.defaults.items()}
    op_types = {index: origin.op_type for index, origin in enumerate(model.origins)}
    oracle = RangeOracle(op_types, True, Folder(model, model.graph).fold, defaults)
    limits = SearchLimits(alpha=alpha, seconds=math.inf, expansions=expansions)
    began = time.process_time()
    matches = Matches.of(rules, oracle, roofline.provider, model.opset, runtime)
    moves = Moves(matches, Prices(costs, matches.fusions))
    search = Backtracking(moves, limits, strategy, layouts=(LayoutChooser(matches),))
    short = shorten(model.graph, matches.depth, opaque_kind(model)) if reuse else None
    graph = model.graph if short is None else short.graph
    searched = search.run(graph)
    start = moves.start(model.graph).cost
    best = min(start, _whole(moves, short, searched).cost)
    seconds = time.process_time() - began
    began = time.process_time()
    second = replace(search, moves=moves.priced_anew(costs))
    _whole(second.moves, short, second.run(graph))
    warm = time.process_time() - began
    return SearchFigures(best / start, seconds, warm, searched.expanded, searched.generated, len(graph.references))


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


_FIGURES = ("nodes searched", "cost ratio", "seconds", "warm", "expansions", "candidates", "ms a candidate")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("models", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--rules", "url", metavar="URL", help="Rules; default: the shipped ones.")
@click.option("--device", default="h200", show_default=True, help="Whose roofline prices the operators.")
@click.option("--layers", default="1,2,4,8,16,32,48", show_default=True, help="Depths of the transformers that are made.")
@click.option("--each/--no-each", default=True, show_default=True, help="Also search every layer by itself.")
def main(models: tuple[Path, ...], url: str | None, device: str, layers: str, each: bool) -> None:
    """Prints how the search scales, and its ablations on MODELS (on a transformer of 12 layers where none are given)."""
    console, rules = Console(width=150), open_rules(url)
    runtime = runtime_directions(rules, ProfileStore(None, device), get_device(device).provider)
    console.print(f"{len(rules)} rules, {len(runtime)} of them what onnxruntime does by itself; roofline of {device}")
    table = Table("layers", "layers solved", *_FIGURES, title="transformers by depth", title_justify="left")
    for depth in map(int, layers.split(",")):
        model = load(transformer(depth))
        _row(table, str(depth), "once", figures=measure(model, rules, device, runtime))
        if each:
            _row(table, str(depth), "each", figures=measure(model, rules, device, runtime, reuse=False))
    console.print(table)
    table = Table("model", "strategy", "alpha", "layers solved", *_FIGURES, title="ablations", title_justify="left")
    named = [(path.stem, load(path)) for path in models] or [("transformer, 12 layers", load(transformer(12)))]
    for name, model in named:
        for strategy in (SUBSTITUTIONS, LAYOUTS, SEQUENTIAL, BACKTRACKING):
            label = "joint" if strategy is BACKTRACKING else strategy.name
            _row(table, name, label, "1.05", "once", figures=measure(model, rules, device, runtime, strategy))
        for alpha in _ALPHAS:
            if alpha != 1.05:
                _row(table, name, "joint", f"{alpha}", "once", figures=measure(model, rules, device, runtime, alpha=alpha))
        if each:
            _row(table, name, "joint", "1.05", "each", figures=measure(model, rules, device, runtime, reuse=False))
    console.print(table)
    console.print(f"peak resident memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


if __name__ == "__main__":
    main()
