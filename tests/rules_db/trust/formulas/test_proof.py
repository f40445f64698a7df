"""Kernels are proved for all sizes, and what is wrong at any size is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.statements import (
    Accumulate,
    Affine,
    Compute,
    Extent,
    Factor,
    Index,
    Load,
    Predicate,
    Reduce,
    Statement,
    Store,
    Tensor,
    view,
)
from mugraph.terms.shape import DataType, Dim, Least, symbol
from mugraph.terms.term import format_term
from rules_db.exchange import format_rule, parse_rule, read_rules
from rules_db.trust.certificate import Evidence
from rules_db.trust.check import check
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import interpret, kernel_rule
from tests.support.block_kernels import (
    BOOL,
    F32,
    banded_attention,
    batched_matmul,
    bias_gelu,
    causal_attention,
    gated_mlp,
    heads_attention,
    joined_rows,
    kernel_of_terms,
    lora,
    masked_rows,
    qk_norm,
    rms_norm_matmul,
    shared_keys,
    skip_layer_norm,
    tensor,
    term,
    two_blocks,
)

A, B, C, D = (symbol(name) for name in "abcd")
SHIPPED = Path(__file__).parents[4] / "rules_db" / "shipped" / "kernels.rules"


def causal() -> Kernel:
    return causal_attention(2, A, B, 4)


def rotated(m: Dim, h: Dim) -> Kernel:
    """A rotary embedding: halves that change places."""
    half = f"sizes=({h},{h})]"
    text = f"Add(Mul(x, c), Mul(Concat[axis=-1](Neg(Split[axis=-1,{half}.1(x)), Split[axis=-1,{half}.0(x)), s))"
    inputs = {"x": tensor(F32, m, 2 * h), "c": tensor(F32, m, 2 * h), "s": tensor(F32, m, 2 * h)}
    return kernel_of_terms("rotated", inputs, {"y": text})


def _partly(x: str, h: Dim) -> str:
    """The first half of the entries of a row rotated, the other as it is (Phi, GPT-NeoX)."""
    parts, halves = f"Split[axis=-1,sizes=({2 * h},{2 * h})]", f"Split[axis=-1,sizes=({h},{h})]"
    first = f"{parts}.0({x})"
    turned = f"Concat[axis=-1](Neg({halves}.1({first})), {halves}.0({first}))"
    return f"Concat[axis=-1](Add(Mul({first}, c), Mul({turned}, s)), {parts}.1({x}))"


def partly_rotated(m: Dim, h: Dim) -> Kernel:
    inputs = {"x": tensor(F32, m, 4 * h), "c": tensor(F32, m, 2 * h), "s": tensor(F32, m, 2 * h)}
    return kernel_of_terms("partly", inputs, {"y": _partly("x", h)})


def partly_rotated_scores(m: Dim, h: Dim) -> Kernel:
    """The product runs over entries of which each part is computed in another way."""
    inputs = {name: tensor(F32, m, width * h) for name, width in (("q", 4), ("k", 4), ("c", 2), ("s", 2))}
    text = f"MatMul({_partly('q', h)}, Transpose[perm=(1,0)]({_partly('k', h)}))"
    return kernel_of_terms("scores", inputs, {"y": text})


PROVED: dict[str, Callable[[], Kernel]] = {
    "two results": lambda: skip_layer_norm(A, B, C),
    "gelu": lambda: bias_gelu(A, B),
    "masked rows": lambda: masked_rows(2, 3, 4, 5),
    "statistics beside a product": lambda: rms_norm_matmul(A, B, C),
    "gated": lambda: gated_mlp(A, B, C),
    "lora": lambda: lora(A, B, C, D),
    "batches": lambda: batched_matmul(A, B, C, D),
    "heads": lambda: heads_attention(A, B, C, 3, 4),
    "causal": causal,
    "window on both sides": lambda: banded_attention(2, A, A, 4, F32, 7, 64),
    "window of a symbolic width": lambda: banded_attention(2, A, B, 4, F32, C, 0),
    "normalised keys": lambda: qk_norm(A, B, C, D),
    "shared keys": lambda: shared_keys(A, B, 4),
    "joined rows": lambda: joined_rows(A, 3, 4),
    "rotated": lambda: rotated(A, B),
    "partly rotated": lambda: partly_rotated(A, B),
    "product of what is partly rotated": lambda: partly_rotated_scores(A, B),
    "two blocks": two_blocks,
}


@pytest.mark.parametrize("name", PROVED)
def test_kernels_are_proved_for_all_sizes(name: str) -> None:
    assert why_not_proved(PROVED[name]()) is None


def test_every_shipped_kernel_says_that_it_is_proved() -> None:
    rules = list(read_rules(str(SHIPPED)))
    assert rules and all(rule.certificate.interpreted is not None and rule.certificate.interpreted.proved for rule in rules)
    assert all(rule.certificate.evidence is Evidence.PROVED and not check(rule, {}) for rule in rules)


def test_a_proof_is_done_again_by_the_checker_and_stands_in_the_text() -> None:
    rule = kernel_rule(lora(A, B, C, D), {})
    text = format_rule(rule)
    assert "interpreted(tests=3, seed=0) & proved(sizes=all)" in text and parse_rule(text) == rule
    wrong = kernel_rule(past(lora(A, B, C, D), "m", 3), {})
    assert wrong.certificate.interpreted is not None and not wrong.certificate.interpreted.proved
    claimed = replace(wrong.certificate, interpreted=replace(wrong.certificate.interpreted, proved=True))
    assert (
        "not proved to compute the body for all sizes: y: the formulas differ"
        in check(replace(wrong, certificate=claimed), {})[0]
    )


# What the proof says no to


def changed(kernel: Kernel, change: Callable[[Block, Statement], Statement | list[Statement]]) -> Kernel:
    """A kernel with its statements changed."""
    blocks = []
    for block in kernel.blocks:
        statements: list[Statement] = []
        for statement in block.statements:
            made = change(block, statement)
            statements += made if isinstance(made, list) else [made]
        blocks.append(replace(block, statements=tuple(statements)))
    return replace(kernel, blocks=tuple(blocks))


def past(kernel: Kernel, axis: str, last: int) -> Kernel:
    """A kernel that saves zeros past a place along an axis."""

    def cut(block: Block, statement: Statement) -> Statement | list[Statement]:
        if not isinstance(statement, Store):
            return statement
        holds = Predicate("kept", (Affine(((Index(axis), -1),), last),))
        chosen = Compute("chosen", term(f"Where(kept, {statement.value}, 0.0)"))
        return [holds, chosen, replace(statement, value="chosen")]

    return changed(kernel, cut)


def test_only_an_audit_tests_what_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = kernel_rule(lora(A, B, C, D), {})
    monkeypatch.setattr("rules_db.trust.interpreted.interpret", lambda kernel, tests, seed: "y differs")
    assert check(rule, {}) == [] and check(rule, {}, tests_proved=True) == ["y differs"]


@pytest.mark.parametrize("last", [3, 63, 1000])
def test_zeros_past_a_row_are_not_proved_and_tests_go_past_them(last: int) -> None:
    kernel = past(bias_gelu(A, B), "m", last)
    assert why_not_proved(kernel) == "y: the formulas differ"
    assert "y differs" in (interpret(kernel, 3, 0) or "")
    assert any("y differs" in reason for reason in check(kernel_rule(kernel, {}), {}))


def test_a_number_that_a_size_is_compared_with_is_a_constant_too() -> None:
    def cut(block: Block, statement: Statement) -> Statement | list[Statement]:
        if not isinstance(statement, Store):
            return statement
        chosen = Compute("chosen", term(f"Where(Less(rows, 64.5), {statement.value}, 0.0)"))
        return [Extent("rows", A), chosen, replace(statement, value="chosen")]

    kernel = changed(bias_gelu(A, B), cut)
    assert why_not_proved(kernel) == "y: the formulas differ"
    assert "y differs" in (interpret(kernel, 3, 0) or "")


def test_what_is_wrong_at_sizes_of_one_alone_is_refused() -> None:
    """Zeros where there are fewer than two rows: no larger size shows them."""

    def cut(block: Block, statement: Statement) -> Statement | list[Statement]:
        if not isinstance(statement, Store):
            return statement
        several = Predicate("several", (Affine(((Index("m"), -1), (Index("m"), 1)), A - 2),))
        chosen = Compute("chosen", term(f"Where(several, {statement.value}, 0.0)"))
        return [several, chosen, replace(statement, value="chosen")]

    kernel = changed(bias_gelu(A, B), cut)
    assert why_not_proved(kernel) is not None
    assert "y differs" in (interpret(kernel, 3, 0) or "")
    assert any("y differs" in reason for reason in check(kernel_rule(kernel, {}), {}))


def test_what_cannot_be_tested_past_its_constants_is_refused() -> None:
    far = past(bias_gelu(A, B), "m", 1 << 22)
    assert "too many to interpret" in (interpret(far, 3, 0) or "")

    def many(block: Block, statement: Statement) -> Statement | list[Statement]:
        conditions = tuple(Affine(((Index("m"), 1),), 100 + number) for number in range(30))
        return [Predicate("kept", conditions), statement] if isinstance(statement, Store) else statement

    assert why_not_proved(changed(bias_gelu(A, B), many)) is None  # what nobody reads changes nothing
    wrong = changed(past(bias_gelu(A, B), "m", 3), many)
    assert "too many to test" in (interpret(replace(wrong, name="wrong"), 3, 0) or "")


def without_keep(block: Block, statement: Statement) -> Statement:
    return replace(statement, keep=None) if isinstance(statement, Accumulate) else statement


def with_offset(block: Block, statement: Statement) -> Statement:
    if isinstance(statement, Predicate):
        return replace(statement, conditions=tuple(replace(c, constant=c.constant + 1) for c in statement.conditions))
    return statement


def with_other_bound(block: Block, statement: Statement) -> Statement:
    """One side of a window is wider by one key."""
    if isinstance(statement, Predicate):
        *others, last = statement.conditions
        return replace(statement, conditions=(*others, replace(last, constant=last.constant + 1)))
    return statement


def with_size(block: Block, statement: Statement) -> Statement:
    return replace(statement, size=statement.size + 1) if isinstance(statement, Extent) else statement


def with_maximum(block: Block, statement: Statement) -> Statement:
    return replace(statement, kind="max") if isinstance(statement, Reduce) else statement


def with_other_heads(block: Block, statement: Statement) -> Statement:
    """Keys read at the heads of another view: every fourth row instead of each."""
    if isinstance(statement, Load) and statement.tensor == "k":
        return replace(statement, view=tuple(f if f.index.axis != "b0" else Factor(Index(None), f.size) for f in statement.view))
    return statement


def without_offsets(block: Block, statement: Statement) -> Statement:
    """What is read from an entry on is read from the first one on."""
    if not isinstance(statement, Load):
        return statement
    moved = (replace(f, index=replace(f.index, offset=0)) if f.index.offset != 0 else f for f in statement.view)
    return replace(statement, view=tuple(moved))


def with_tables_exchanged(block: Block, statement: Statement) -> Statement:
    other = {"c": "s", "s": "c"}
    is_table = isinstance(statement, Load) and statement.tensor in other
    return replace(statement, tensor=other[statement.tensor]) if is_table else statement


@pytest.mark.parametrize(
    ("kernel", "change"),
    [
        (causal, without_keep),
        (causal, with_offset),
        (lambda: banded_attention(2, A, A, 4, F32, 7, 64), with_other_bound),
        (lambda: skip_layer_norm(A, B, C), with_size),
        (lambda: skip_layer_norm(A, B, C), with_maximum),
        (lambda: heads_attention(A, B, C, 3, 4), with_other_heads),
        (lambda: joined_rows(A, 3, 4), with_offset),
        (lambda: rotated(A, B), with_offset),
        (lambda: partly_rotated(A, B), with_offset),
        (lambda: partly_rotated(A, B), without_offsets),
        (lambda: partly_rotated(A, B), with_tables_exchanged),
        (lambda: partly_rotated_scores(A, B), with_offset),
        (lambda: partly_rotated_scores(A, B), without_offsets),
        (lambda: partly_rotated_scores(A, B), with_tables_exchanged),
    ],
)
def test_wrong_statements_are_not_proved(kernel: Callable[[], Kernel], change: Callable[[Block, Statement], Statement]) -> None:
    wrong = changed(kernel(), change)
    assert wrong != kernel() and "the formulas differ" in (why_not_proved(wrong) or "")


def test_a_guard_against_rows_without_a_number_is_part_of_the_proof() -> None:
    """Rows that a mask hides throughout are zero in the body: a kernel has to ask, and to give the same number."""
    weights = "Softmax[axis=-1](Where(mask, MatMul(q, k), -inf))"
    text = f"MatMul(Where(IsNaN({weights}), 0.0, {weights}), v)"
    inputs = {"q": tensor(F32, A, B), "k": tensor(F32, B, C), "v": tensor(F32, C, D), "mask": tensor(BOOL, A, C)}
    kernel = kernel_of_terms("guarded", inputs, {"y": text})
    assert why_not_proved(kernel) is None

    def instead(wanted: str) -> Kernel:
        def change(block: Block, statement: Statement) -> Statement:
            if not isinstance(statement, Compute) or "IsNaN" not in str(statement.term):
                return statement
            attended = format_term(statement.term.inputs[2])
            return replace(statement, term=term(wanted.format(attended)))

        return changed(kernel, change)

    assert why_not_proved(instead("Where(IsNaN({0}), 0.0, {0})")) is None
    for wrong in ("{0}", "Where(IsNaN({0}), 1.0, {0})", "Where(Not(IsNaN({0})), 0.0, {0})"):
        assert why_not_proved(instead(wrong)) == "y: the formulas differ"


def column(*statements: Statement, body: str, inputs: dict[str, Tensor] | None = None, m: Dim = A, n: Dim = B) -> Kernel:
    """A kernel of one block over ``x[m, n]``, rows in a grid."""
    x = Tensor("x", tensor(F32, m, n))
    block = Block("b", (("m", m), ("n", n)), ("m",), None, statements)
    return Kernel("k", (x, *(inputs or {}).values()), (Tensor("y", tensor(F32, m, n)),), (term(body),), (block,))


def test_truth_values_are_no_numbers() -> None:
    """NumPy's sum of two truths is a truth, that of two ones is two."""
    sizes = {"m": A, "n": B}
    flag = Tensor("flag", tensor(BOOL, A, B))
    load, store = Load("f", "flag", view(sizes, "m", "n")), Store("y", "v", view(sizes, "m", "n"))
    read = Load("t", "x", view(sizes, "m", "n"))
    kernel = column(
        read, load, Compute("w", term("Add(f, f)")), Compute("v", term("Where(w, t, t)")), store, body="x", inputs={"f": flag}
    )
    assert "bool" in (why_not_proved(kernel) or "")


def test_counts_of_truth_values_are_proved() -> None:
    kernel = kernel_of_terms(
        "count", {"x": tensor(F32, A, 4)}, {"y": "Cast[to=bool](ReduceMax[axes=(-2,-1)](Cast[to=int32](IsInf(x))))"}
    )
    assert why_not_proved(kernel) is None


def test_divisions_of_integers_are_not_those_of_numbers() -> None:
    sizes = {"m": A, "n": B}
    x, y = (Tensor(name, tensor(DataType.INT32, A, B)) for name in "xy")
    statements = (
        Load("t", "x", view(sizes, "m", "n")),
        Compute("v", term("Mul(Div(t, 2.0), 2.0)")),
        Store("y", "v", view(sizes, "m", "n")),
    )
    block = Block("b", (("m", A), ("n", B)), ("m",), None, statements)
    assert "integers" in (why_not_proved(Kernel("k", (x,), (y,), (term("Mul(x, 1.0)"),), (block,))) or "")


def test_reads_outside_a_tensor_are_not_proved() -> None:
    """A shift that symbols leave open may be negative."""
    sizes = {"m": A, "n": B}
    place = Index("n", shift=A - B)
    load = Load("t", "x", (Factor(Index("m"), A), Factor(replace(place, modulo=B), B)))
    below = Load("t", "x", (Factor(Index("m"), A), Factor(Index("n", offset=0 - symbol("c")), B)))
    store = Store("y", "t", view(sizes, "m", "n"))
    assert "may be negative" in (why_not_proved(column(load, store, body="x")) or "")
    assert "may be negative" in (why_not_proved(column(below, store, body="x")) or "")
    plain = Load("t", "x", view(sizes, "m", "n"))
    above = Store("y", "t", (Factor(Index(None, offset=0 - symbol("c")), 1), *view(sizes, "m", "n")))
    assert "may be negative" in (why_not_proved(column(plain, above, body="x")) or "")


def test_a_tensor_is_saved_once_whatever_blocks_are_called() -> None:
    sizes = {"m": A, "n": B}
    load, store = Load("t", "x", view(sizes, "m", "n")), Store("y", "t", view(sizes, "m", "n"))
    assert why_not_proved(column(load, store, body="x")) is None
    assert "saved twice" in (why_not_proved(column(load, store, store, body="x")) or "")
    twin = two_blocks()
    assert why_not_proved(replace(twin, blocks=tuple(replace(b, name="b") for b in twin.blocks))) is None


def test_large_sizes_and_terms_are_refused_at_once() -> None:
    power = symbol("p")
    for _ in range(5):
        power = power * power  # type: ignore[assignment]
    assert "many factors" in (why_not_proved(bias_gelu(power, B)) or "")
    text = "x"
    for _ in range(14):
        text = f"Mul(Add({text}, c), Add({text}, d))"
        if len(text) > 1 << 14:
            break
    inputs = {name: tensor(F32, A, B) for name in "xcd"}
    assert "product" in (why_not_proved(kernel_of_terms("deep", inputs, {"y": text})) or "")


def test_a_size_that_may_be_zero_is_no_divisor() -> None:
    """The smaller of two dimensions is known to be neither a symbol nor at least 1."""
    for part, reason in ((C, None), (symbol(Least(C, D)), "may be zero")):
        sizes = {"m": A, "n": B * part}
        high, low = Factor(Index("n", divide=part), B), Factor(Index("n", modulo=part), part)
        load, store = Load("t", "x", (Factor(Index("m"), A), high, low)), Store("y", "t", view(sizes, "m", "n"))
        told = why_not_proved(column(load, store, body="x", n=sizes["n"]))
        assert told is None if reason is None else reason in (told or "")
