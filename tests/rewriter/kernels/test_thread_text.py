"""The text of a kernel may nest expressions where an operator writes each operand once."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mugraph.ops import REGISTRY, Operator, entered, get_operator
from mugraph.terms.term import Term, make, var
from rewriter.kernels.text.thread import Expr, bare, write_thread
from rewriter.kernels.triton.scalar import TritonText
from tests.support.samples import applications


def written(record: Operator, term: Term, count: int) -> list[int]:
    """How often the text of an application has each operand."""
    (text,) = record.run(TritonText(), term.attrs, [Expr(f"operand{i}") for i in range(count)])  # type: ignore[arg-type]
    return [len(re.findall(rf"\boperand{i}\b", text.text)) for i in range(count)]


def test_what_nests_writes_each_operand_once() -> None:
    nesting = [record for record in REGISTRY.values() if record.traits.nests]
    assert {"Add", "Div", "Sqrt", "Exp", "Relu", "Where", "Cast", "IsInf"} <= {record.name for record in nesting}
    for record in nesting:
        for term, types in applications(record):
            assert written(record, term, len(types)) == [1] * len(types), record.name


@pytest.mark.parametrize("name", ["Softplus", "Sign", "Gelu", "IsNaN", "HardSwish", "LeakyRelu", "PRelu"])
def test_what_writes_an_operand_twice_does_not_nest(name: str) -> None:
    record = get_operator(name)
    assert not record.traits.nests
    (term, types) = next(applications(record))
    assert max(written(record, term, len(types))) > 1


def test_only_what_nests_gets_expressions() -> None:
    def lines(op: str) -> list[str]:
        text: list[str] = []
        term = make(op, [make("Add", [var("x"), var("y")])])
        operands = {"x": Expr("a"), "y": Expr("b")}
        write_thread(TritonText(), term, operands, "t", lambda name, value: text.append(f"{name} = {bare(value.text)}"))
        return text

    assert lines("Sqrt") == ["t = tl.sqrt(a + b)"]
    assert lines("Erf") == ["t_1 = a + b", "t = tl.erf(t_1)"]
    record = get_operator("Erf")
    with entered(replace(record, name="Nesting", onnx=(), traits=replace(record.traits, nests=True))):
        assert lines("Nesting") == ["t = tl.erf(a + b)"]
