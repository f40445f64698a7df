"""Every operator of the registry through a whole run: with results that nobody reads, and of every element type.

What a record does not admit stays opaque; whatever happens, nothing fails and the result is what onnxruntime gave before.
"""

from __future__ import annotations

import math
from pathlib import Path

import onnx
import pytest

from mugraph.domains.base import FLOATS
from mugraph.onnx import load
from mugraph.ops import REGISTRY
from mugraph.terms.shape import DataType
from rewriter import optimize
from rewriter.cost import CostModel, ProfileStore
from rewriter.cost.signature import node_model
from rewriter.reference import compare, random_inputs, reference_outputs
from rewriter.runtime_env import RuntimeFailure, Session, new_session
from tests.support.graphs import UNGUARD, rule
from tests.support.records import Application, applications_of, typed_models

OPSETS = (20, 23)
ANY_NEGATION = rule("Neg(Neg(X))", "X", "X:[m,n]")
RULES = (UNGUARD, ANY_NEGATION, rule("Where(IsNaN(X), X, X)", "X", "X:[m,n]"))


def several_results() -> list[tuple[str, Application, int, bool]]:
    """Every sample with several results, how many of them are read, and whether the node leaves the others out."""
    found = {
        f"{app.form.op_type}-{len(app.operands)}-{read}-{'absent' if absent else 'unread'}": (app, read, absent)
        for opset in OPSETS
        for record in REGISTRY.values()
        for app in applications_of(record, opset)
        for read in range(1, len(app.results) + 1)
        for absent in (False, True)
    }
    return [(name, *case) for name, case in found.items() if len(case[0].results) > 1]


def session_or_skip(model: onnx.ModelProto) -> Session:
    try:
        return new_session(model.SerializeToString(), optimize=False)
    except RuntimeFailure as problem:
        pytest.skip(str(problem))


@pytest.mark.parametrize(
    ("name", "app", "read", "absent"), several_results(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_results_that_nobody_reads(own_cache: Path, tmp_path: Path, name: str, app: Application, read: int, absent: bool) -> None:
    model = app.model(read, absent)
    before = session_or_skip(model)
    onnx.save(model, tmp_path / "m.onnx")
    loaded = load(model)
    outcome = optimize(tmp_path / "m.onnx", tmp_path / "out.onnx", deterministic=True, device="cpu", rules=RULES)
    is_changed = any(type_.dtype in FLOATS for type_ in app.results[:read])
    assert outcome.fault is None and outcome.improved is is_changed, outcome.message
    feeds = random_inputs(loaded, {}, 1)
    after = new_session(tmp_path / "out.onnx")
    for given, wanted in zip(after.run(None, feeds), before.run(None, feeds), strict=True):
        assert compare(given, wanted).relative_l2 < 1e-5


def test_several_results_are_those_of_many_operators() -> None:
    assert {app.form.op_type for _, app, _, _ in several_results()} >= {"Split", "MultiHeadAttention", "SkipLayerNormalization"}


WRONG_IN_THE_RUNTIME = {("Gather", DataType.STRING), ("Windows", DataType.STRING)}
"""onnxruntime 1.31 copies one entry of each block that it gathers: of rows of texts all but the first are empty. Windows are
written as a Gather."""

OTHERS = (DataType.STRING, DataType.INT64)
ELEMENT_TYPES = [dtype for dtype in DataType if dtype != DataType.UNDEFINED]


@pytest.mark.parametrize("dtype", ELEMENT_TYPES, ids=lambda dtype: dtype.name.lower())
def test_every_element_type_that_the_runtime_has(own_cache: Path, tmp_path: Path, dtype: DataType) -> None:
    """Reading, prices, the signatures that are measured, the reference and the whole run; fed with what the type admits."""
    for record in REGISTRY.values():
        for model in typed_models(record, 20, dtype):
            loaded = load(model)
            costs = CostModel(ProfileStore(None, "nowhere"), loaded.opset, {}, deadline=-math.inf)
            for node in loaded.graph.nodes():
                assert costs.cost(loaded.graph, node) >= 0
                signature = costs.signature(loaded.graph, node)
                if signature is not None:
                    node_model(signature, loaded.opset)
                    assert signature.moved() > 0
            before = new_session(model.SerializeToString(), optimize=False)
            feeds = random_inputs(loaded, {}, 1)
            try:
                wanted = before.run(None, feeds)
            except RuntimeFailure:  # indices without a table, or a type that NumPy hands over as another
                continue
            (reference,) = reference_outputs(loaded, [feeds])
            right = all(compare(given, exact).is_small for given, exact in zip(wanted, reference, strict=True))
            assert right is ((record.name, dtype) not in WRONG_IN_THE_RUNTIME), record.name
            onnx.save(model, tmp_path / "m.onnx")
            optimize(tmp_path / "m.onnx", tmp_path / "out.onnx", deterministic=True, device="cpu", rules=RULES)


def test_many_operators_have_kernels_for_other_types_than_floats() -> None:
    texts, integers = ([r.name for r in REGISTRY.values() if any(typed_models(r, 20, dtype))] for dtype in OTHERS)
    assert {"Equal", "Gather", "Reshape", "Concat", "Where"} <= set(texts) and len(integers) > 25
