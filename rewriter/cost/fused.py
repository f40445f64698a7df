"""The rules that onnxruntime applies by itself when it loads a model: it is let do so, on one small model a rule.

A rule whose replacement has fewer nodes and one new kind of operator may describe what onnxruntime's own optimisers do. Its
pattern is written as a model at sample sizes (vectors beside matrices as weights, all else as inputs), onnxruntime optimises it,
and if nothing but the replacement's operators is left, the rule is one that happens anyway: its result is what the pattern costs.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from mugraph.deadline import heed
from mugraph.domains.range import Range
from mugraph.ops import NotUnderstood, filled, get_operator
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, Dim, ShapeError, SymDim, TensorType, Undecided, concrete
from mugraph.terms.term import AttrValue, Term, bind_value, binding_of, substitute, variables, walk
from rewriter.cost.known import known_directions
from rewriter.cost.signature import random_array, written
from rewriter.cost.store import ProfileStore
from rewriter.runtime_env import PROVIDERS, RuntimeFailure, bare_session, digest, usable_providers
from rewriter.search.directions import Direction, compile_rules
from rules_db.sides import facts_of
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.rule import Rule, dim_symbols

__all__ = ["RuntimeDirections", "asked_directions", "kept_directions", "pattern_model"]

_OPSET = 20
_SIZES = ((8, 16, 24, 32, 40, 48), (16, 8, 32, 24, 48, 40), (8,) * 6)
_VERSION = 2
"""Part of the key of a cached answer; raise it when the models or what counts as fused change."""
_YES, _NO = "yes", "no"
_DIRECTIONS = 1 << 15
"""Most directions of which a process remembers what was found out."""


class RuntimeDirections:
    """The directions that onnxruntime applies by itself on a provider, each asked about when somebody first wants to know.

    Where the provider is not on this machine, what the CPU provider does is taken for it as far as it does the same
    on both (:class:`mugraph.ops.base.RuntimeFacts`).
    Answers ship with the package, or are kept in the store, by onnxruntime's version, the provider that was asked, and the rule.

    Attributes:
        possible: ids of the directions of which nobody knows yet that it does not apply them.
    """

    def __init__(self, rules: Iterable[Rule], store: ProfileStore, provider: str) -> None:
        self._store, self._asked = store, provider if provider in usable_providers() else "cpu"
        doubtful = [(d, a) for d, a in _doubtful(rules, provider) if self._asked == provider or get_operator(a).runtime.fuses]
        known = known_directions(self._asked)
        self._answers = {direction.id: known[direction.id] for direction, _ in doubtful if direction.id in known}
        kept = _kept([direction for direction, _ in doubtful if direction.id not in self._answers], store, self._asked)
        self._answers |= {direction.id: answer for direction, answer in kept.items()}
        self._open = {direction.id: (direction, added) for direction, added in doubtful if direction.id not in self._answers}
        self.possible = frozenset(identity for identity, answer in self._answers.items() if answer).union(self._open)

    def happens(self, direction: Direction) -> bool:
        """Whether it applies a direction, for whichever provider that was compiled.

        What was asked for that is kept at once: where a run ends, the next goes on.
        """
        if direction.id not in self._answers and direction.id in self._open:
            answer = self._answers[direction.id] = _happens(*self._open[direction.id], self._asked)
            self._store.remember(_key(direction, self._asked), _YES if answer else _NO)
        return self._answers.get(direction.id, False)

    def applied(self) -> frozenset[str]:
        """Ids of all directions that it applies: whatever is open is asked."""
        for direction, _ in self._open.values():
            self.happens(direction)
        return frozenset(direction for direction in self.possible if self._answers[direction])


def asked_directions(rules: Iterable[Rule], provider: str) -> dict[str, bool]:
    """Whether onnxruntime applies by itself what it may, on a provider that is here, by the direction's id: asked anew."""
    return {direction.id: _happens(direction, added, provider) for direction, added in _doubtful(rules)}


def kept_directions(rules: Iterable[Rule], store: ProfileStore, provider: str) -> dict[str, bool]:
    """The same as far as a store has the answers."""
    kept = _kept([direction for direction, _ in _doubtful(rules)], store, provider)
    return {direction.id: answer for direction, answer in kept.items()}


def _kept(directions: Iterable[Direction], store: ProfileStore, asked: str) -> dict[Direction, bool]:
    """What a store remembers of directions."""
    keys = {_key(direction, asked): direction for direction in directions}
    return {keys[key]: answer == _YES for key, answer in store.verdicts(keys).items()}


def _doubtful(rules: Iterable[Rule], provider: str | None = None) -> Iterator[tuple[Direction, str]]:
    """The directions that onnxruntime may apply by itself, as a search for a provider has them, and what operator each adds."""
    for direction in compile_rules(rules, provider):
        added = _added(direction)
        if added is not None:
            yield direction, added


def _key(direction: Direction, asked: str) -> str:
    return digest("fused by the runtime", str(_VERSION), ort.__version__, asked, direction.id)


def _added(direction: Direction) -> str | None:
    """The one kind of operator that a shorter replacement has and the pattern has not."""
    before, after = facts_of(direction.pattern).applications, facts_of(direction.replacement).applications
    if after.total() >= before.total():
        return None
    new = after.keys() - before.keys()
    return next(iter(new)) if len(new) == 1 else None


@lru_cache(maxsize=_DIRECTIONS)
def _happens(direction: Direction, added: str, provider: str) -> bool:
    heed()
    wanted = Counter(_onnx_name(op) for op in facts_of(direction.replacement).applications.elements())
    for model in pattern_models(direction):
        for tried in (model, _with_readers(model)):
            left = Counter(_executed(tried.SerializeToString(), provider))
            if _onnx_name(added) in left and left.total() <= wanted.total() and left.keys() <= wanted.keys():
                return True
    return False


_READER = "no operand: what reads a result"
"""Stands beside a result in the node that reads it, to tell that node from others."""


def _with_readers(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a node after each result: some fusions do not happen where a result is one of the model's."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for result in changed.graph.output:
        bound = onnx.helper.make_tensor_value_info(_READER, result.type.tensor_type.elem_type, [])
        if all(info.name != _READER for info in changed.graph.input):
            changed.graph.input.append(bound)
        changed.graph.node.append(onnx.helper.make_node("Max", [result.name, _READER], [f"{result.name} read"]))
        result.name = f"{result.name} read"
    return changed


def _onnx_name(op: str) -> str:
    record = get_operator(op)
    return record.runtime.name or op if record.contract is None else record.contract.op_type


@lru_cache(maxsize=1024)
def _executed(model: bytes, provider: str) -> tuple[str, ...]:
    """The operator types of a model as onnxruntime runs it, without the nodes that read its results.

    Where onnxruntime refuses the model, those of the model as it came. What has been asked in a process is not asked again.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        options.optimized_model_filepath = str(path)
        try:
            bare_session(model, options, [PROVIDERS[provider]], provider)
        except RuntimeFailure:
            optimized = onnx.load_from_string(model)
        else:
            optimized = onnx.load(path)
    return tuple(node.op_type for node in optimized.graph.node if _READER not in node.input)


def pattern_models(direction: Direction) -> Iterator[onnx.ModelProto]:
    """The pattern at sizes for which the rule's guards hold: with ranks as in the rule, then with a batch dimension more."""
    for more in (False, True):
        for sizes in _sizes(direction.rule):
            model = pattern_model(direction, sizes, more)
            if model is not None:
                yield model
                break


def _sizes(rule: Rule) -> list[Mapping[str, Dim]]:
    symbols = {s for t in rule.types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()}
    names = sorted(symbols | dim_symbols([*rule.source, *rule.target]))
    return [dict(zip(names, itertools.cycle(row), strict=False)) for row in _SIZES]


def pattern_model(direction: Direction, sizes: Mapping[str, Dim], batched: bool = False) -> onnx.ModelProto | None:
    """The pattern as a model, or ``None`` where it is ill-typed, a guard about types fails or ONNX lacks an operator.

    Args:
        sizes: of the rule's dimension symbols.
        batched: give all but vectors and scalars a leading dimension more, where there is nothing else two to all.
    """
    rule = direction.rule
    samples = {name: bind_value(value, sizes) for name, value in rule.attrs.items()}
    pattern = [substitute(root, {}, samples, sizes) for root in direction.pattern]
    types = {name: type_.at(sizes) for name, type_ in rule.types.items()}
    most = max((type_.rank for type_ in types.values()), default=0)
    if batched:
        types = {
            n: TensorType(t.dtype, (2,) * (1 if most > 1 else 2) + t.shape) if t.rank == most or t.rank > 1 else t
            for n, t in types.items()
        }
    try:
        inferred = infer_types([*pattern], types)
        if not all(_may_hold(condition, types, binding_of(samples, sizes)) for condition in rule.conditions):
            return None
        return _model(pattern, inferred)
    except (ShapeError, Undecided, NotUnderstood):
        return None


def _may_hold(condition: Condition, types: Mapping[str, TensorType], binding: Mapping[str, AttrValue]) -> bool:
    """Whether a guard can hold where the operands have these types, whatever their values."""
    close = {name[1:]: value for name, value in binding.items() if name.startswith("$")}
    sizes = {name: value for name, value in binding.items() if not name.startswith("$")}
    closed = condition.substitute({}, close, sizes)
    facts = Facts(lambda term: infer_types([term], types)[term], lambda term: Range.finite_input(0.25, 0.75), binding)
    return closed.holds(facts) is not False


def _model(roots: list[Term], types: Mapping[Term, TensorType]) -> onnx.ModelProto:
    """A model of terms; vectors and scalars beside tensors of more dimensions are weights.

    Raises:
        Undecided, ShapeError, NotUnderstood: there is none.
    """
    generator = np.random.default_rng(0)
    nodes, inputs, weights, results, names = [], [], [], [], dict[Term, str]()
    made: dict[tuple[object, ...], list[str]] = {}
    domains = {"": _OPSET}
    most = max((types[term].rank for term in variables(roots)), default=0)
    for term in variables(roots):
        names[term], type_ = term.name, types[term]
        if type_.rank > 1 or type_.rank == most:
            inputs.append(onnx.helper.make_tensor_value_info(term.name, int(type_.dtype), concrete(type_.shape)))
        else:
            weights.append(onnx.numpy_helper.from_array(random_array(type_, generator), term.name))
    for term in walk(roots):
        if term.is_var or term.op == "Const":
            continue
        beside = [types[i].dtype for i in term.inputs if i.op != "Const" and types[i].dtype != DataType.BOOL]
        wide = beside[0] if beside else DataType.FLOAT
        operands = [
            TensorType(wide, ()) if i.op == "Const" and types[i].dtype != DataType.BOOL else types[i] for i in term.inputs
        ]
        key = (term.op, term.attrs, term.inputs)
        if key not in made:
            operator = get_operator(term.op)
            form = filled(operator.to_onnx(term.attrs, operands, _OPSET))
            operand_names = []
            for operand, type_ in zip(term.inputs, operands, strict=True):
                if operand.op == "Const":
                    operand_names.append(f"w{len(weights)}")
                    weights.append(
                        onnx.numpy_helper.from_array(np.asarray(operand.attr("value"), type_.dtype.numpy()), operand_names[-1])
                    )
                else:
                    operand_names.append(names[operand])
            written_inputs = []
            for item in form.inputs:
                if item is None or isinstance(item, int):
                    written_inputs.append("" if item is None else operand_names[item])
                else:
                    written_inputs.append(f"w{len(weights)}")
                    weights.append(onnx.numpy_helper.from_array(np.asarray(item), written_inputs[-1]))
            outputs = operator.types(term.attrs, operands)
            made[key] = [f"v{len(made)}_{i}" for i in range(len(outputs))]
            domains.setdefault(form.domain, 1)
            attributes = written(form.attributes)
            produced = form.output_names(made[key])
            nodes.append(onnx.helper.make_node(form.op_type, written_inputs, produced, domain=form.domain, **attributes))
        names[term] = made[key][term.out]
    for name, type_ in {names[root]: types[root] for root in roots}.items():
        results.append(onnx.helper.make_tensor_value_info(name, int(type_.dtype), concrete(type_.shape)))
    graph = onnx.helper.make_graph(nodes, "pattern", inputs, results, weights)
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
