"""Random models, the same for the same seed and number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from mugraph.domains.base import FLOATS
from mugraph.onnx import ModelError, load
from mugraph.onnx.scopes import graphs_within, nested_nodes
from mugraph.terms.shape import DataType, TensorType, concrete
from rewriter.reference.comparison import is_float
from tools.fuzz.models.draft import ModelDraft, Rejected, np_type
from tools.fuzz.models.idioms import IDIOMS
from tools.fuzz.models.images import IMAGES
from tools.fuzz.models.masks import hides_a_row
from tools.fuzz.models.pieces import PIECES
from tools.fuzz.models.quantized import QUANTIZED
from tools.fuzz.oracle import EMPTY, EMPTY_UNFITTING, HIDDEN, INFINITE, OVERFLOWING, UNFITTING, words_of
from tools.fuzz.running import CannotRun, at_sizes, computed, run, session

__all__ = ["RandomModel", "random_model"]

_OPSETS = (7, 8, 9, 10, 11, 11, 12, 12, 13, 14, 15, 16, 17, 17, 18, 19, 20, 21, 22, 23, 23, 24, 25)
_FLOATS = (DataType.FLOAT,) * 12 + (DataType.FLOAT16, DataType.FLOAT16, DataType.DOUBLE, DataType.DOUBLE, DataType.BFLOAT16)
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
_WAYS = PIECES + IMAGES + IDIOMS + QUANTIZED
_EXTREME = (0.0, -0.0, 1.0, -1.0, 1e-40, 1e-20, 1e18, -1e18, 6e4, 1e-7, 88.0, -104.0)
_GREATEST = (*_EXTREME, 1e20, 3e38, -3e38)
_LARGE = (0.0, -0.0, 1.0, -1.0, 30.0, -30.0, 1e-6, 1e-3, 100.0, 12.0)
_MOST = 1 << 16
"""Most elements of an input of the sizes that the optimiser takes where it is given none."""
_DEADLY_WHERE_EMPTY = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "FusedConv",
        "NhwcFusedConv",
        "Attention",
        "MultiHeadAttention",
        "GroupQueryAttention",
        "InstanceNormalization",
    }
)
"""Operators that end or hang the runtime's process where tensors have no entries (docs/upstream.md)."""
_DEADLY_WHERE_ONE = frozenset({"MatMulIntegerToFloat"})
"""Operators that end it where a size is 1 that others contradict."""
_INFINITE = (np.nan, np.inf, -np.inf)


@dataclass(frozen=True)
class RandomModel:
    """A model that onnxruntime runs, and what it is to be tried with.

    Attributes:
        proto: the model.
        feeds: by what they are: ``measured`` of the sizes it was made with, ``other`` of other sizes, ``extreme`` of finite
            extremes, ``small`` of those of the first made small, ``overflowing`` of extremes of which something overflows,
            ``infinite`` with what is no number, ``empty`` of sizes of 0, ``unfitting`` of sizes at which the registry finds fewer
            operators well-typed, and ``empty, unfitting`` of both. ``, hidden`` follows where a mask hides a row throughout.
        options: of the optimiser.
    """

    proto: onnx.ModelProto
    feeds: Mapping[str, Mapping[str, np.ndarray]]
    options: Mapping[str, Any] = field(default_factory=dict)


def random_model(seed: int, number: int) -> RandomModel:
    """The model of a number; drawn again until onnxruntime runs it."""
    for attempt in range(50):
        draft = _draft(np.random.default_rng([seed, number, attempt]))
        try:
            return _finished(draft)
        except (Rejected, CannotRun):
            continue
    raise AssertionError(f"no model of seed {seed} and number {number} runs")


def _draft(generator: np.random.Generator) -> ModelDraft:
    """A draft of some pieces that onnxruntime loads."""
    sizes = tuple(int(s) for s in generator.choice(_SIZES, 3, replace=False))
    opset = int(generator.choice(_OPSETS))
    draft = ModelDraft(generator, opset, _FLOATS[int(generator.integers(len(_FLOATS)))], sizes)
    for _ in range(int(generator.integers(1, 3))):
        draft.input(TensorType(draft.dtype, tuple(draft.size() for _ in range(int(generator.integers(1, 4))))))
    weights = np.array([weight for _, weight in _WAYS])
    wanted = int(generator.integers(2, 11))
    for _ in range(3 * wanted):
        piece = _WAYS[int(generator.choice(len(_WAYS), p=weights / weights.sum()))][0]
        mark = draft.mark()
        try:
            piece(draft)
            session(_model(draft, list(_sinks(draft))).SerializeToString(), optimize=False)
        except (Rejected, CannotRun):
            draft.return_to(mark)
            continue
        wanted -= 1
        if not wanted:
            break
    return draft


def _sinks(draft: ModelDraft) -> dict[str, None]:
    """The values that nothing reads."""
    made = dict.fromkeys(name for node in draft.nodes for name in node.output if name)
    read = {name for node in draft.nodes for name in (*node.input, *names_within(node))}
    return {name: None for name in made if name not in read}


def names_within(node: onnx.NodeProto) -> set[str]:
    """All names that subgraphs of a node mention."""
    found: set[str] = set()
    for attribute in node.attribute:
        for inner in attribute.g.node:
            found |= {*inner.input, *names_within(inner)}
        found |= {value.name for value in attribute.g.output}
    return found


def _model(draft: ModelDraft, outputs: list[str], symbols: Mapping[int, str] | None = None) -> onnx.ModelProto:
    """The draft as a model with some outputs; sizes that have a symbol are dynamic."""
    inputs = []
    for name in draft.inputs:
        type_ = draft.types[name]
        shape = [(symbols or {}).get(d, d) if isinstance(d, int) else d for d in type_.shape]
        inputs.append(helper.make_tensor_value_info(name, int(type_.dtype), shape))
    constants = [_tensor(array, name) for name, array in draft.initializers.items()]
    results = []
    for name in outputs:
        known = draft.types.get(name)
        if known is None or symbols:
            results.append(onnx.ValueInfoProto(name=name))
        else:
            results.append(helper.make_tensor_value_info(name, int(known.dtype), concrete(known.shape)))
    graph = helper.make_graph(draft.nodes, "random", inputs, results, constants)
    used = {node.domain for inner in graphs_within(graph) for node in inner.node}
    imports = [i for i in draft.imports() if not i.domain or i.domain in used]
    model = helper.make_model(graph, opset_imports=imports, functions=draft.functions, ir_version=10, producer_name="tools.fuzz")
    _type_outputs(draft, model)
    return model


def _type_outputs(draft: ModelDraft, model: onnx.ModelProto) -> None:
    """Gives outputs the types that onnx infers, or what the draft knows; those of which nothing is known are left out."""
    if all(result.HasField("type") for result in model.graph.output):
        return
    typed = []
    for result in onnx.shape_inference.infer_shapes(model).graph.output:
        known = draft.types.get(result.name)
        if not result.type.tensor_type.HasField("shape") and known is not None:
            result = helper.make_tensor_value_info(result.name, int(known.dtype), [None] * known.rank)
        if result.type.WhichOneof("value") not in (None, "tensor_type") or result.type.tensor_type.HasField("shape"):
            typed.append(result)
    del model.graph.output[:]
    model.graph.output.extend(typed)


def _tensor(array: np.ndarray, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(array, name)


def _finished(draft: ModelDraft) -> RandomModel:
    """Outputs, dynamic sizes and inputs. Raises Rejected, CannotRun."""
    g = draft.generator
    sinks = list(_sinks(draft))
    if not sinks:
        raise Rejected("nothing is computed")
    made = [name for node in draft.nodes for name in node.output if name in draft.types]
    outputs = [name for name in sinks if draft.chance(0.85)] or sinks[:1]
    if draft.chance(0.3):
        outputs.append(draft.one(made or sinks))
    outputs = list(dict.fromkeys(outputs))
    g.shuffle(outputs)
    base = {name: concrete(draft.types[name].shape) or () for name in draft.inputs}
    symbols = {}
    if draft.chance(0.5):
        candidates = sorted({size for shape in base.values() for size in shape})
        symbols = {size: f"N{size}" for size in candidates if draft.chance(0.6)}
    model = _model(draft, outputs, symbols)
    if not model.graph.output:
        raise Rejected("no output has a type")
    infinite = draft.chance(0.15)
    feeds = _feeds(draft, model, base, symbols, infinite)
    _vary(draft, model)
    options: dict[str, Any] = {"assume_finite": not infinite}
    if symbols and not any("default" in words_of(kind) for kind in feeds):
        options["shapes"] = base
    options["assume_attended"] = not draft.chance(0.25)
    return RandomModel(model, feeds, options)


def _vary(draft: ModelDraft, model: onnx.ModelProto) -> None:
    """Things that change nothing: constants as nodes, initializers that are inputs, duplicate constants, what nothing reads."""
    graph = model.graph
    kept = []
    for tensor in list(graph.initializer):
        if draft.chance(0.15):
            graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
        else:
            kept.append(tensor)
            if draft.chance(0.05) and tensor.data_type != onnx.TensorProto.STRING:
                graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    del graph.initializer[:]
    graph.initializer.extend(kept)
    if draft.chance(0.1) and draft.opset <= 24:
        model.ir_version = int(draft.one([8, 9, 10]))


def _feeds(
    draft: ModelDraft, model: onnx.ModelProto, base: Mapping[str, tuple[int, ...]], symbols: Mapping[int, str], infinite: bool
) -> dict[str, dict[str, np.ndarray]]:
    """Inputs of all kinds that the model runs on. Raises CannotRun where it does not run on those that it was made with."""
    running = session(model.SerializeToString(), optimize=False)
    feeds = {"measured": _drawn(draft, base)}
    run(running, feeds["measured"])
    greatest = _GREATEST if draft.chance(0.5) else _EXTREME
    for kind, entries in (("extreme", greatest), ("large", _LARGE)):
        feed = _drawn(draft, base, entries)
        feeds[OVERFLOWING if _overflows(model, feed) else kind] = feed
    feeds["small"] = {name: _diminished(array) for name, array in feeds["measured"].items()}
    if infinite or draft.chance(0.2):
        feeds[INFINITE] = _drawn(draft, base, _INFINITE)
    operators = {node.op_type for node in model.graph.node}
    least = 2 if operators & _DEADLY_WHERE_ONE else 1 if operators & _DEADLY_WHERE_EMPTY else 0
    for count, choices in enumerate(((1, 2, 3, 5, 9), (1,), (0, 2))) if symbols else ():
        sizes = {size: max(least, int(draft.one(choices))) for size in symbols}
        kind = EMPTY if 0 in sizes.values() else f"other{count}"
        feeds[kind] = _drawn(draft, {n: tuple(sizes.get(d, d) for d in shape) for n, shape in base.items()})
    if symbols and draft.chance(0.3):
        sizes = dict[str, int]()  # a symbol has one size wherever it stands
        for shape in base.values():
            for i, dim in enumerate(shape):
                sizes.setdefault(dim, max(least, 1) if i == 0 else 128)
        default = {n: tuple(sizes[d] if d in symbols else d for d in shape) for n, shape in base.items()}
        if all(np.prod(shape, dtype=float) <= _MOST for shape in default.values()):
            feeds["default"] = _drawn(draft, default)
    typed = _typed_by_the_registry(at_sizes(model, feeds["measured"]))
    run_on = {kind: feed for kind, feed in feeds.items() if _runs(running, at_sizes(model, feed), feed, typed)}
    fits = {kind: _is_typed(at_sizes(model, feed), typed) for kind, feed in run_on.items()}
    others = {EMPTY: EMPTY_UNFITTING}
    named = {kind if fits[kind] else others.get(kind, UNFITTING): feed for kind, feed in run_on.items()}
    return {f"{kind}, {HIDDEN}" if hides_a_row(model, feed) else kind: feed for kind, feed in named.items()}


def _diminished(array: np.ndarray) -> np.ndarray:
    """Floats a thousandth as large, so that a constant that is added to their squares counts; others as they are."""
    return (array.astype(np.float64) * 1e-3).astype(array.dtype) if is_float(array) else array


def _overflows(model: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> bool:
    """Whether of finite inputs a number is infinite, or a product of it may be."""
    values = [*feed.values(), *computed(model, feed).values()]
    floats = [one for one in values if isinstance(one, np.ndarray) and is_float(one)]
    return not all(np.all(np.abs(one.astype(np.float64)) <= math.sqrt(ml_dtypes.finfo(one.dtype).max)) for one in floats)


def _runs(running: Any, model: onnx.ModelProto, feed: Mapping[str, np.ndarray], typed: Counter[str]) -> bool:
    """Whether a model of the sizes of some inputs is well-typed and runs on them.

    onnxruntime overlooks a mismatch of what is empty, and reads and writes beyond tensors at others (docs/upstream.md). onnx's
    inference finds mismatches, but tells of none in a model with an operator that it does not know: there the registry is asked.

    Args:
        typed: what of it the registry types at the sizes that it was made with.
    """
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        if any(node.domain == "com.microsoft" for node in nested_nodes(model)) and not _is_typed(model, typed):
            return False
        run(running, feed)
    except Exception:  # onnx raises several types
        return False
    return True


def _is_typed(model: onnx.ModelProto, typed: Counter[str]) -> bool:
    """Whether the registry finds all well-typed in a model of some sizes that it does in that of others."""
    return not typed - _typed_by_the_registry(model)


def _typed_by_the_registry(model: onnx.ModelProto) -> Counter[str]:
    """The operators that the registry finds well-typed; none of a model that cannot be read."""
    try:
        read = load(model)
    except ModelError:
        return Counter()
    return Counter(read.origins[n.origin].op_type for n in read.graph.nodes() if n.origin is not None and not n.is_opaque)


def _drawn(draft: ModelDraft, shapes: Mapping[str, tuple[int, ...]], special: tuple[float, ...] = ()) -> dict[str, np.ndarray]:
    """Inputs of some shapes; a third of the floats are special where some are given."""
    g = draft.generator
    feeds = {}
    for name, shape in shapes.items():
        dtype = draft.types[name].dtype
        if name in draft.bounds:
            feeds[name] = draft.indices(shape, draft.bounds[name], draft.apart.get(name)).astype(np_type(dtype))
        elif dtype in FLOATS:
            entries = g.standard_normal(shape) * g.choice([1.0, 1.0, 0.1, 5.0])
            if special:
                entries = np.where(g.random(shape) < 0.3, g.choice(special, shape), entries)
            with np.errstate(all="ignore"):
                narrow = np.asarray(entries).astype(np_type(dtype))
                wide = narrow.astype(np.float64)
                finite = np.where(np.isfinite(wide) | ~np.isfinite(entries), wide, np.sign(entries)).astype(np_type(dtype))
            feeds[name] = np.asarray(finite)
        else:
            feeds[name] = draft.numbers(TensorType(dtype, shape))
    return feeds
