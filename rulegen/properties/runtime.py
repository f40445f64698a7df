"""Operator properties tried in onnxruntime itself, on its CPU provider: what its kernels make of both sides.

Semantics in the records say what a property means; the runtime says whether its operators are those. Each side is written as a
model of its own, nothing in it optimised, and run on the same inputs, multiples of an eighth, so that what jumps at a number
jumps on both sides. An operator without a kernel for the CPU is named; then the other side is compared with the records' values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from mugraph.domains.base import FLOATS, Unsupported
from mugraph.domains.real import Real
from mugraph.ops import NotExpressible, filled, get_operator
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, TensorType, Undecided, concrete
from mugraph.terms.term import AttrValue, Term, walk
from rulegen.properties.case_typing import TypedSides
from rulegen.properties.inputs import real_inputs
from rulegen.properties.sampling import Sampler
from rulegen.properties.solving import SolvedSampler
from rules_db.trust.properties import Axiom

__all__ = ["RuntimeEvidence", "run_sides", "validate_in_runtime"]

OPSET = 23
_TOLERANCE = 2e-4
"""Greatest difference over the root mean square of the entries; of float32, in sums of a few hundred products."""

ort.set_default_logger_severity(4)


@dataclass(frozen=True)
class RuntimeEvidence:
    """The outcome of trying a property in onnxruntime.

    Attributes:
        runs: samples that both sides, or one and the records, gave the same values for.
        both: those of them for which both sides ran.
        largest: the most entries that an operand had.
        refusal: the first reason why a side was not run, or nothing.
        counterexample: the first sample with different values.
    """

    runs: int
    both: int
    largest: int
    refusal: str = ""
    counterexample: str | None = None


class _SideWriter:
    """The nodes of a term.

    Args:
        types: of the variables, which are the inputs by their names.
        root: the term, which is the output ``result``.
    """

    def __init__(self, types: Mapping[str, TensorType], root: Term) -> None:
        self.types, self.root = infer_types([root], types), root
        self.inputs = types
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.domains = {""}
        self.values: dict[Term, str] = {}
        self._applications: dict[tuple[object, ...], list[str]] = {}

    def model(self) -> bytes:
        """The model. Raises NotExpressible, ShapeError, Undecided where an operator cannot be written."""
        for term in walk([self.root]):
            if term.is_var:
                self.values[term] = term.name
            elif term.op != "Const":
                self.values[term] = self._application(term)[term.out]
        if self.root.op == "Const":
            raise NotExpressible("a number is no model")
        self.nodes.append(helper.make_node("Identity", [self.values[self.root]], ["result"]))
        used = {term.name for term in walk([self.root]) if term.is_var}
        graph = helper.make_graph(
            self.nodes,
            "side",
            [helper.make_tensor_value_info(n, int(t.dtype), concrete(t.shape)) for n, t in self.inputs.items() if n in used],
            [helper.make_tensor_value_info("result", int(self.types[self.root].dtype), None)],
            self.constants,
        )
        opsets = [helper.make_opsetid(domain, 1 if domain else OPSET) for domain in sorted(self.domains)]
        content: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        return content

    def _application(self, term: Term) -> list[str]:
        key = (term.op, term.attrs, term.inputs)
        if key not in self._applications:
            self._applications[key] = self._written(term)
        return self._applications[key]

    def _written(self, term: Term) -> list[str]:
        record = get_operator(term.op)
        attrs = {**record.defaults, **dict(term.attrs)}
        beside = next(
            (self.types[o].dtype for o in term.inputs if o.op != "Const" and self.types[o].dtype != DataType.BOOL), None
        )
        operands, names = [], []
        for operand in term.inputs:
            type_ = self.types[operand]
            if operand.op == "Const":
                dtype = type_.dtype if type_.dtype == DataType.BOOL or beside is None else beside
                type_ = TensorType(dtype, ())
                names.append(self._constant(np.asarray(operand.attr("value"), dtype.numpy())))
            else:
                names.append(self.values[operand])
            operands.append(type_)
        form = filled(record.to_onnx(attrs, operands, OPSET))
        inputs = ["" if i is None else names[i] if isinstance(i, int) else self._constant(np.asarray(i)) for i in form.inputs]
        results = [f"v{len(self._applications)}_{i}" for i in range(len(record.types(attrs, operands)))]
        attributes = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in form.attributes.items()}
        self.domains.add(form.domain)
        self.nodes.append(helper.make_node(form.op_type, inputs, form.output_names(results), domain=form.domain, **attributes))
        return results

    def _constant(self, value: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name


def _run(types: Mapping[str, TensorType], root: Term, inputs: Mapping[str, np.ndarray]) -> np.ndarray | str:
    """The value of a term in onnxruntime, or why there is none."""
    try:
        model = _SideWriter(types, root).model()
    except (NotExpressible, ValueError, Undecided) as problem:  # also a list that is empty, whose type a message does not say
        return str(problem)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
        value: np.ndarray = session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})[0]
    except Exception as problem:  # onnxruntime raises many types where a kernel is missing
        return " ".join(str(problem).split())[:200]
    return value


def run_sides(
    sides: Sequence[Term], types: Mapping[str, TensorType], inputs: Mapping[str, np.ndarray]
) -> tuple[list[np.ndarray | str], np.ndarray | None]:
    """Each side's value in onnxruntime or why there is none, and the records' value; ``None`` where they have none."""
    eighths = {n: np.round(8 * v) / 8 if types[n].dtype in FLOATS else v for n, v in inputs.items()}
    given = {n: np.asarray(v, types[n].dtype.numpy()) for n, v in eighths.items()}
    try:
        with np.errstate(all="ignore"):
            known = np.asarray(evaluate([sides[0]], Real(), eighths)[sides[0]])
    except Unsupported:
        known = None
    return [_run(types, side, given) for side in sides], known


def _unlike(one: np.ndarray, other: np.ndarray, known: np.ndarray | None) -> bool:
    """Whether values differ: in shape, or where they are numbers by more than rounding."""
    if one.shape != other.shape:
        return True
    if one.dtype.kind in "biu" or other.dtype.kind in "biu":
        return not np.array_equal(one, other)
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    speaks = np.ones(a.shape, bool) if known is None else np.isfinite(np.broadcast_to(known, a.shape))
    a, b = a[speaks], b[speaks]
    if not a.size:
        return False
    scale = float(np.sqrt(np.mean(np.minimum(np.abs(a), 1e100) ** 2))) or 1.0
    with np.errstate(all="ignore"):
        return not bool(np.all((np.abs(a - b) <= _TOLERANCE * max(scale, 1.0)) | (a == b)))


def _samples(
    axiom: Axiom, generator: np.random.Generator, count: int
) -> list[tuple[dict[str, TensorType], dict[str, AttrValue]]]:
    """Samples of float32 to which a property applies, some of them as large as real heads are."""
    solved, sampler = SolvedSampler(axiom, generator), Sampler(axiom, generator)
    found = []
    for trial in range(30 * count):
        drawn = solved.draw() if trial % 2 else sampler.draw()
        if drawn is None or any(t.dtype == DataType.FLOAT16 for t in drawn[0].values()):
            continue
        instance = TypedSides(axiom, drawn[1])
        sides = instance.of(drawn[0])
        if sides is None or sides[0] is None or sides[1] is None or not instance.has_entries:
            continue
        found.append(drawn)
        if len(found) == count:
            break
    return found


def validate_in_runtime(axiom: Axiom, count: int = 6, seed: int = 0) -> RuntimeEvidence:
    """Runs both sides of a property in onnxruntime on so many samples, as far as they are found."""
    generator = np.random.default_rng([seed, 3, int(axiom.digest[:8], 16)])
    runs = both = largest = 0
    refusal = ""
    for types, attrs in _samples(axiom, generator, count):
        sides = TypedSides(axiom, attrs)
        values, known = run_sides((sides.left, sides.right), types, real_inputs(axiom, attrs, types, generator))
        refused = [value for value in values if isinstance(value, str)]
        refusal = refusal or (refused[0] if refused else "")
        arrays: list[np.ndarray] = [value for value in values if not isinstance(value, str)]
        if len(arrays) == 1 and known is not None:
            arrays.append(known)
        if len(arrays) < 2:
            continue
        where = ", ".join([*(f"{n}:{t}" for n, t in types.items()), *(f"${n}={v}" for n, v in attrs.items())])
        if _unlike(arrays[0], arrays[1], known):
            return RuntimeEvidence(runs, both, largest, refusal, f"{axiom.name}: onnxruntime's values differ at {where}")
        runs, both = runs + 1, both + (not refused)
        largest = max([largest, *(t.size() for t in types.values())])
    return RuntimeEvidence(runs, both, largest, refusal)
