"""Reproduction files of a rule that broke a model: the rule, and what stood where it was applied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from mugraph.graph import Graph
from mugraph.onnx import Model
from mugraph.onnx.fold import Folder
from mugraph.ops import NotExpressible, filled, get_operator
from mugraph.terms.shape import Dim, TensorType, Undecided, concrete, type_at
from mugraph.terms.term import Term, bind_attrs, walk
from rewriter.cost.signature import random_array, written
from rewriter.search.match import Match, resolve
from rules_db.exchange import format_rule

__all__ = ["write_reproduction"]

_LARGEST = 1 << 24
"""Elements of the largest constant that is stored; a larger one becomes an input."""


def write_reproduction(
    output: Path, model: Model, graph: Graph, match: Match, sizes: Mapping[str, Dim], problem: str
) -> Path | None:
    """Writes ``OUTPUT.quarantine/RULE.onnx``, inputs for it in ``RULE.npz`` and an explanation in ``RULE.txt``.

    Args:
        output: the file that the run writes.
        model: the model.
        graph: the candidate before the rule was applied.
        match: where it was applied.
        sizes: of dimension symbols, as the model is measured.
        problem: what was observed.

    Raises:
        OSError: the files cannot be written.

    Returns:
        the ONNX file; ``None`` where the place cannot be written as a model of its own, and only the text is there.
    """
    folder = output.with_name(output.name + ".quarantine")
    folder.mkdir(exist_ok=True)
    direction = match.direction
    stem = folder / direction.rule.id
    names = graph.tables.names
    where = ", ".join(names[value] or f"value {value}" for value in match.values)
    lines = [
        f"{direction.id} broke {output.name}: {problem}",
        f"used as   {direction}",
        f"at        {where}",
        *(f"  {name} = {names[value] or f'value {value}'}: {graph.type(value)}" for name, value in match.variables),
        "",
        format_rule(direction.rule),
    ]
    built = _site(model, graph, match, sizes)
    if isinstance(built, str):
        lines.insert(3, f"the place cannot be written as a model: {built}")
    else:
        proto, feeds = built
        onnx.save(proto, stem.with_suffix(".onnx"))
        np.savez(stem.with_suffix(".npz"), **feeds)  # type: ignore[arg-type]
        lines.insert(3, f"{stem.name}.onnx is what stood there, {stem.name}.npz random inputs of the measured sizes")
    stem.with_suffix(".txt").write_text("\n".join(lines))
    return None if isinstance(built, str) else stem.with_suffix(".onnx")


def _site(
    model: Model, graph: Graph, match: Match, sizes: Mapping[str, Dim]
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]] | str:
    """The matched pattern as a model over the matched values, and inputs; or why there is none."""
    helper, tables = onnx.helper, graph.tables
    folder, generator = Folder(model, graph), np.random.default_rng(0)
    inputs: list[onnx.ValueInfoProto] = []
    stored: dict[str, onnx.TensorProto] = {}
    feeds: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []
    opsets = {"": model.opset}

    def measured(value: int) -> TensorType:
        type_ = type_at(graph.type(value), sizes)
        if type_ is None:
            raise Undecided(f"the type of {tables.names[value] or f'value {value}'} is unknown")
        return type_

    def folded(value: int) -> np.ndarray | None:
        return folder.fold(value) if tables.constant[value] and measured(value).size() <= _LARGEST else None

    def enter(value: int) -> None:
        """A value that comes from outside the pattern: stored, or an input."""
        name, type_ = f"v{value}", measured(value)
        if name in stored or name in feeds:
            return
        array = folded(value)
        if array is not None:
            stored[name] = onnx.numpy_helper.from_array(array, name)
        else:
            inputs.append(helper.make_tensor_value_info(name, int(type_.dtype), concrete(type_.shape)))
            feeds[name] = random_array(type_, generator)

    try:
        at: dict[Term, int] = {}
        for term in walk(match.direction.pattern):
            at[term] = resolve(graph, match.binding[term])
            definition = graph.definition(at[term])
            if term.is_var or term.op == "Const" or definition is None:
                enter(at[term])
                continue
            node = definition[0]
            operands = [resolve(graph, value) for value in node.inputs]
            for value in operands:
                if f"v{value}" not in {name for made in nodes for name in made.output}:
                    enter(value)
            attrs = bind_attrs(node.attrs, sizes)
            form = get_operator(node.op).to_onnx(attrs, [measured(v) for v in operands], model.opset)
            form = filled(form, {i: v for i, value in enumerate(operands) if (v := folded(value)) is not None}.get)
            names = []
            for position, item in enumerate(form.inputs):
                if item is None or isinstance(item, int):
                    names.append("" if item is None else f"v{operands[item]}")
                else:
                    names.append(f"c{len(nodes)}_{position}")
                    stored[names[-1]] = onnx.numpy_helper.from_array(np.asarray(item), names[-1])
            outputs = form.output_names([f"v{value}" for value in node.values])
            if not any(made.output[:] == outputs for made in nodes):
                nodes.append(helper.make_node(form.op_type, names, outputs, domain=form.domain, **written(form.attributes)))
            opsets.setdefault(form.domain, 1)
        roots = [at[root] for root in match.direction.pattern]
        results = [helper.make_tensor_value_info(f"v{v}", int(measured(v).dtype), concrete(measured(v).shape)) for v in roots]
    except (NotExpressible, Undecided, ValueError) as problem:
        return str(problem)
    body = helper.make_graph(nodes, match.direction.rule.id, inputs, results, list(stored.values()))
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(body, opset_imports=imports, ir_version=model.proto.ir_version), feeds
