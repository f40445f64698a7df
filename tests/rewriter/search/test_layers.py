"""Repeated layers: found, verified, shortened, and what was found on the short model done on the whole one."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

from mugraph.graph import Graph
from mugraph.onnx import load
from mugraph.onnx.kinds import opaque_kind
from mugraph.terms.text import parse_type
from rewriter.search.layer_runs import find_layer_runs
from rewriter.search.layers import lift, shorten
from rewriter.search.replay import replay
from tests.support.graphs import ASSOCIATIVE, FACTOR, Builder, adapters, backtracking, moves_of, ops, rule


def shape_of(graph: Graph) -> list[tuple[int, int, int]]:
    """Layers, nodes a layer and crossing values of each run."""
    return [(len(run.layers), len(run.layers[0]), run.crossing) for run in find_layer_runs(graph)]


def test_layers_are_found_whatever_their_weights() -> None:
    graph = adapters(8)
    assert shape_of(graph) == [(8, 5, 1)]
    (run,) = find_layer_runs(graph)
    assert {node.op for node in run.layers[0]} == {"MatMul", "Add", "Relu"}
    assert not {node for layer in run.layers for node in layer} & {n for n in graph.nodes() if n.op == "Tanh"}


def test_three_layers_are_all_needed() -> None:
    assert shape_of(adapters(3)) == [] and shorten(adapters(3), 2) is None
    short = shorten(adapters(4), 2)
    assert short is not None and short.kept == (3,) and short.left_out == [1]


def test_a_layer_of_another_size_ends_a_run() -> None:
    assert shape_of(adapters(9, {4: 3})) == [(4, 5, 1), (4, 5, 1)]
    assert shape_of(adapters(6, {2: 3, 4: 3})) == []


@pytest.mark.parametrize(("changed", "expected"), [(False, [(6, 2, 1)]), (True, [])])
def test_numbers_within_a_layer_must_be_equal(changed: bool, expected: list[tuple[int, int, int]]) -> None:
    """A pattern may ask for a number; weights it cannot ask for."""
    b = Builder()
    value = b.input("[4,4]")
    for layer in range(6):
        number = b.constant(np.asarray(2.0 + (changed and layer), np.float32))
        value = b.op(
            "Relu", b.op("Mul", value, number if changed else b.tables.literal(np.asarray(2.0, np.float32), parse_type("[]")))
        )
    assert shape_of(b.graph(value)) == expected


def test_a_run_is_cut_where_a_layer_reads_only_the_one_before() -> None:
    """Each sum reads the last two results: cut behind the sums, that is one of this layer and one of the layer before."""
    b = Builder()
    older, value = b.input("[4,4]"), b.input("[4,4]")
    for _ in range(8):
        older, value = value, b.op("Relu", b.op("Add", value, older))
    assert shape_of(b.graph(value)) == [(7, 2, 2)]


def test_one_layer_wired_otherwise_is_noticed() -> None:
    """A single layer reads its weight times the model's input instead of the layer before."""
    b = Builder()
    first = value = b.input("[4,4]")
    for layer in range(10):
        product = b.op("MatMul", first if layer == 5 else value, b.weight(4, 4))
        value = b.op("Tanh", b.op("Add", value, product))
    graph = b.graph(value)
    assert shape_of(graph) == [(5, 3, 1)]
    (run,) = find_layer_runs(graph)
    assert all(first not in node.inputs for layer in run.layers[1:] for node in layer)


def test_a_first_layer_in_another_order_is_one_of_them() -> None:
    """What all layers read is computed where the first needs it, in the midst of its nodes."""
    b = Builder()
    value, mask = b.input("[4,4]"), b.input("[4,4]")
    shared = b.op("Exp", b.op("Neg", mask))
    for _ in range(6):
        value = b.op("Relu", b.op("Add", b.op("MatMul", value, b.weight(4, 4)), shared))
    graph = b.graph(value)
    (run,) = find_layer_runs(graph)
    assert len(run.layers) == 6
    assert not {"Exp", "Neg"} & {node.op for layer in run.layers for node in layer}


def test_a_weight_in_two_places_hinders() -> None:
    """Places are told apart by what the weights are called; a tied weight has two names."""
    b = Builder()
    value, tied = b.input("[4,4]"), b.weight(4, 4)
    for layer in range(6):
        left, right = (tied, b.weight(4, 4)) if layer % 2 else (b.weight(4, 4), tied)
        value = b.op("Tanh", b.op("Sub", b.op("MatMul", value, left), b.op("Add", value, right)))
    graph = b.graph(value)
    assert shape_of(graph) != [] and shorten(graph, 2) is None


@pytest.mark.parametrize("layers", [4, 12])
def test_what_is_found_on_the_short_model_is_done_on_the_whole_one(layers: int) -> None:
    graph = adapters(layers)
    search = backtracking([ASSOCIATIVE, FACTOR], alpha=2.0)
    whole = search.run(graph).better[0]
    short = shorten(graph, search.moves.matches.depth)
    assert short is not None
    lifted = lift(search.moves, short, search.run(short.graph).better[0])
    assert lifted.missing == 0
    assert lifted.candidate.graph.digest == whole.graph.digest, "the same model as without the detour"
    assert {len(move.sites) for move in lifted.candidate.moves} == {layers}
    assert lifted.candidate.cost == pytest.approx(search.moves.prices.total(lifted.candidate.graph)) == pytest.approx(whole.cost)
    assert replay(search.moves, graph, lifted.candidate.moves).graph.digest == whole.graph.digest


def test_the_work_does_not_grow_with_the_layers() -> None:
    work = []
    for layers in (6, 60):
        search = backtracking([ASSOCIATIVE, FACTOR], alpha=2.0)
        short = shorten(adapters(layers), search.moves.matches.depth)
        assert short is not None
        searched = search.run(short.graph)
        work.append((len(short.graph.references), searched.expanded, searched.generated))
    assert work[0] == work[1]


def test_sites_between_layers_are_found_between_all_of_them() -> None:
    """Each layer ends with the transposition that the next one undoes."""
    b = Builder()
    value = b.input("[4,4]")
    for _ in range(7):
        turned = b.op("Transpose", b.op("MatMul", value, b.weight(4, 4)), perm=(1, 0))
        value = b.op("Transpose", b.op("Transpose", b.op("Tanh", turned), perm=(1, 0)), perm=(1, 0))
    graph = b.graph(value)
    search = backtracking([rule("Transpose[perm=(1,0)](Transpose[perm=(1,0)](X))", "X", "X:[m,n]")])
    short = shorten(graph, search.moves.matches.depth)
    assert short is not None and short.kept == (3,)
    lifted = lift(search.moves, short, search.run(short.graph).better[0])
    assert lifted.missing == 0 and ops(lifted.candidate.graph).count("Transpose") == 7


def test_a_site_at_the_entry_of_the_first_layer_is_none_that_is_missing() -> None:
    """There the rule matches what looks otherwise: the whole model has a site more than the move on the short one."""
    b = Builder()
    total = b.op("Add", b.input("[4,4]"), b.weight(4, 4))
    for _ in range(7):
        value = b.op("Neg", total)
        total = b.op("Add", b.op("Tanh", b.op("MatMul", value, b.weight(4, 4))), value)
    graph = b.graph(total)
    moves = moves_of([rule("Neg(Add(X, Y))", "Sub(X, Y)", "X:[m,n] Y:[m,n]")])
    short = shorten(graph, moves.matches.depth)
    assert short is not None and short.kept == (3,)
    start = moves.start(short.graph)
    alike = max((group.matches for group in moves.groups(start) if group.alike), key=len)
    assert len({match.values for match in alike}) == 2
    moved = moves.take(start, alike)
    assert moved is not None
    lifted = lift(moves, short, moved)
    assert lifted.missing == 0 and ops(lifted.candidate.graph).count("Sub") == 7


def test_layers_whose_values_leave_the_model_keep_them() -> None:
    b = Builder()
    value = b.input("[4,4]")
    states = []
    for _ in range(6):
        value = b.op("Relu", b.op("Neg", b.op("Neg", b.op("MatMul", value, b.weight(4, 4)))))
        states.append(value)
    graph = b.graph(*states)
    search = backtracking([rule("Neg(Neg(X))", "X", "X:[m,n]")])
    short = shorten(graph, search.moves.matches.depth)
    assert short is not None and short.graph.outputs == graph.outputs
    lifted = lift(search.moves, short, search.run(short.graph).better[0])
    assert ops(lifted.candidate.graph).count("Neg") == 0 and lifted.candidate.graph.outputs == graph.outputs


def decoder(layers: int, *, is_shared: bool = False) -> Graph:
    """Layers that each read a cache, an input of the model, and make it longer: an output. With one cache read by two layers."""
    b = Builder()
    value, caches, grown = b.input("[4,4]"), list[int](), list[int]()
    for layer in range(layers):
        caches.append(caches[-1] if is_shared and layer == layers // 2 else b.input("[9,4]"))
        product = b.op("MatMul", value, b.weight(4, 4))
        grown.append(b.op("Concat", caches[-1], product, axis=-2))
        value = b.op("Tanh", b.op("Neg", b.op("Neg", b.op("Slice", grown[-1], axes=(-2,), starts=(1,), ends=(5,), steps=(1,)))))
    return b.graph(value, *grown)


def test_a_layer_may_read_an_input_of_its_own() -> None:
    """As the cache of a decoder is one: the short model reads a few, and what is found is done beside each."""
    graph = decoder(8)
    assert shape_of(graph) == [(8, 6, 1)]
    search = backtracking([rule("Neg(Neg(X))", "X", "X:[m,n]")])
    short = shorten(graph, search.moves.matches.depth)
    assert short is not None and short.left_out == [5]
    assert ops(short.graph).count("Concat") == 3
    keys = {short.key(value) for value in graph.inputs[1:]}
    assert len(keys) == 1 and short.key(graph.inputs[0]) not in keys, "each cache stands at the same place of its layer"
    lifted = lift(search.moves, short, search.run(short.graph).better[0])
    assert lifted.missing == 0 and ops(lifted.candidate.graph).count("Neg") == 0
    assert lifted.candidate.graph.outputs == graph.outputs


def test_an_input_that_two_layers_read_is_neither_ones_own() -> None:
    graph = decoder(10, is_shared=True)
    (run,) = find_layer_runs(graph)
    assert len(run.layers) == 4
    (shared,) = (value for value in graph.inputs if len(graph.users.get(value, ())) == 2)
    assert all(shared not in node.inputs for layer in run.layers for node in layer)


def test_a_layer_whose_weights_refuse_is_left_alone_and_counted() -> None:
    """The guard looks at the weights themselves; the layer in which it fails is not among those that were searched."""
    b = Builder()
    value = b.input("[4,4]")
    for layer in range(8):
        scale = b.constant(np.full((4, 4), 0.0 if layer == 4 else 2.0, np.float32))
        value = b.op("Tanh", b.op("Div", b.op("Mul", value, scale), scale))
    needless = rule("Div(Mul(X, C), C)", "X", "X:[m,n] C:[m,n]", "nonzero(C)")
    search = backtracking([needless])
    graph = b.graph(value)
    short = shorten(graph, search.moves.matches.depth)
    assert short is not None
    lifted = lift(search.moves, short, search.run(short.graph).better[0])
    assert lifted.missing == 1
    assert ops(lifted.candidate.graph).count("Div") == 1


def test_layers_of_one_node_are_kept_as_far_as_a_pattern_reaches() -> None:
    b = Builder()
    value = b.input("[4,4]")
    for _ in range(20):
        value = b.op("Tanh", value)
    graph = b.graph(value)
    short = shorten(graph, 6)
    assert short is not None and short.kept == (6,)


def test_opaque_nodes_are_told_apart_by_what_they_do() -> None:
    b = Builder()
    value = b.input("[4,4]")
    for origin in range(6):
        made = b.tables.new_value(b.tables.types[value])
        b.tables.add_node("Opaque", (), [value], [made], origin, intern=False)
        value = b.op("Relu", made)
    graph = b.graph(value)
    assert shape_of(graph) == [], "nothing is known of them"
    assert len(find_layer_runs(graph, lambda node: "the same")[0].layers) == 6
    assert find_layer_runs(graph, lambda node: node.origin) == []


@pytest.mark.parametrize(("type_", "is_shortened"), [("[4,4]", True), (None, False)])
def test_what_leaves_the_model_without_a_type_stays(type_: str | None, is_shortened: bool) -> None:
    """As the cache of an operator that nothing is known of: nothing of which that is known may stand for it."""
    b = Builder()
    value, states = b.input("[4,4]"), []
    for origin in range(6):
        made, state = b.tables.new_value(b.tables.types[value]), b.tables.new_value(type_ and parse_type(type_))
        b.tables.add_node("Opaque", (), [value], [made, state], origin, intern=False)
        value = b.op("Relu", made)
        states.append(state)
    short = shorten(b.graph(value, *states), 2, lambda node: "the same")
    assert (short is not None) is is_shortened


@pytest.mark.parametrize(
    ("node", "like"),
    [
        ("{o} = com.example.Blur <radius = 3> ({i})", True),
        ("{o} = com.example.Blur <radius = {n}> ({i})", False),
        (
            "{o} = If (c) <then_branch = g () => (float[4] a) {{ a = Neg({i}) }}, "
            "else_branch = h () => (float[4] b) {{ b = Abs({i}) }}>",
            False,
        ),
    ],
)
def test_opaque_nodes_of_a_file_are_told_apart_by_their_attributes(node: str, like: bool) -> None:
    lines, value = [], "x"
    for layer in range(6):
        lines += [node.format(o=f"o{layer}", i=value, n=layer), f"v{layer} = Relu(o{layer})"]
        value = f"v{layer}"
    text = '<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]> g (float[4] x, bool c) => (float[4] y) {'
    model = load(parse_model(f"{text} {' '.join(lines)} y = Tanh({value}) }}"))
    assert bool(find_layer_runs(model.graph, opaque_kind(model))) is like
