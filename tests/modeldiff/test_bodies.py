"""Bodies of If, Loop and Scan are compared as models are: what is rewritten there is proved, and a fault is named where it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from modeldiff.compare import ComparedBody, DiffRegion, Equality, ModelComparison
from modeldiff.telling import as_json, as_page, region_lines
from tests.support.compared import compared, text_of
from tools.fuzz.diffs import drawn, small_model

TENSORS: dict[str, Any] = {"w": drawn(8, 8), "b": drawn(8, seed=3), "bound": np.float32(2.0), "two": np.float32(2.0)}


def branches(then: str, otherwise: str = "v = Neg(x)", around: str = "", **tensors: Any) -> ModelProto:
    text = f"""(float[4,8] x) => (float[4,8] y) {{ {around} m = ReduceMax<keepdims = 0>(x) c = Greater(m, bound)
        y = If(c) <then_branch = t () => (float[4,8] u) {{ {then} }},
            else_branch = e () => (float[4,8] v) {{ {otherwise} }}> }}"""
    return small_model(text, **{**TENSORS, **tensors})


def loop(body: str, count: int = 3, **tensors: Any) -> ModelProto:
    text = f"""(float[4,8] x) => (float[4,8] y, float[{count},4,8] s) {{ y, s = Loop(n, yes, x)
        <body = l (int64 i, bool c, float[4,8] h) => (bool d, float[4,8] g, float[4,8] o) {{ d = Identity(c) {body} }}> }}"""
    return small_model(text, **{**TENSORS, "n": count, "yes": np.bool_(True), **tensors})


def scan(body: str, attributes: str = "", **tensors: Any) -> ModelProto:
    text = f"""(float[4,8] x, float[5,4,8] z) => (float[4,8] y, float[5,4,8] s) {{ y, s = Scan<num_scan_inputs = 1, {attributes}
        body = l (float[4,8] h, float[4,8] e) => (float[4,8] g, float[4,8] o) {{ {body} }}>(x, z) }}"""
    return small_model(text, **{**TENSORS, **tensors})


def nested(inner: str, around: str = "") -> ModelProto:
    then = f"""{around} a = MatMul(x, w) z = ReduceSum<keepdims = 0>(a) q = Greater(z, bound)
        u = If(q) <then_branch = n () => (float[4,8] p) {{ {inner} }}, else_branch = f () => (float[4,8] k) {{ k = Relu(a) }}>"""
    return branches(then)


def named(scope: ModelComparison | ComparedBody) -> Iterator[tuple[str, str]]:
    """The values within bodies at which they are said to begin to differ, with the inputs."""
    for body in (body for region in scope.regions for body in region.bodies):
        for difference in (difference for region in body.regions for difference in region.differences):
            assert difference.after is not None and difference.feed is not None
            yield body.pairing.after.name(difference.after), body.inputs.probes[difference.feed].words
        yield from named(body)


def inner_regions(scope: ModelComparison | ComparedBody) -> Iterator[DiffRegion]:
    for body in (body for region in scope.regions for body in region.bodies):
        yield from body.regions
        yield from inner_regions(body)


PRODUCT = "a = MatMul({0}, w) k = Add(a, b)", "k = Gemm({0}, w, b)"


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        (branches("a = MatMul(x, w) k = Add(a, b) u = Relu(k)"), branches("k = Gemm(x, w, b) u = Relu(k)"), 1),
        (branches("a = Identity(x) u = Relu(a)"), branches("u = Relu(x)"), 0),
        (branches("u = Relu(x)", "a = Neg(x) v = Neg(a)"), branches("r = Relu(x) u = Relu(r)", "v = Identity(x)"), 2),
        (
            branches("u = Relu(q)", "v = Add(q, b)", "q = MatMul(x, w)"),
            branches("u = Relu(q)", "v = Add(b, q)", "q = MatMul(x, w)"),
            1,
        ),
        (loop(PRODUCT[0].format("h") + " g = Tanh(k) o = Relu(g)"), loop(PRODUCT[1].format("h") + " g = Tanh(k) o = Relu(g)"), 1),
        (
            scan("a = MatMul(e, w) k = Mul(a, two) g = Add(k, h) o = Relu(g)"),
            scan("a = MatMul(e, w) g = Add(a, h) o = Relu(g)", w=2 * TENSORS["w"]),
            1,
        ),
        (nested("j = Add(a, b) p = Tanh(j)"), nested("j = Add(b, a) k = Neg(j) l = Neg(k) p = Tanh(l)"), 2),
    ],
    ids=["gemm", "identity", "both", "around", "loop", "scan", "nested"],
)
def test_what_is_rewritten_in_a_body_is_proved(before: ModelProto, after: ModelProto, count: int, tmp_path: Path) -> None:
    comparison = compared(tmp_path, before, after)
    assert comparison.verdict is Equality.PROVED and len(comparison.regions) == 1, text_of(comparison)
    proved = [known for region in inner_regions(comparison) for _, known in region.claims if known.rule]
    assert len(proved) >= count and all(known.is_proved for known in proved)


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        (branches("a = MatMul(x, w) r = Relu(a) u = Add(r, b)"), branches("a = MatMul(x, w) r = Tanh(a) u = Add(r, b)"), "r"),
        (
            branches(PRODUCT[0].format("x") + " r = Relu(k) u = Add(r, b)"),
            branches(PRODUCT[1].format("x") + " r = Tanh(k) u = Add(r, b)"),
            "r",
        ),
        (
            branches("a = MatMul(x, w) u = Add(a, b)"),
            branches("a = MatMul(x, w) u = Add(a, b)", w=TENSORS["w"] + np.eye(8, dtype="f4")),
            "a",
        ),
        (loop("a = MatMul(h, w) g = Tanh(a) o = Relu(g)"), loop("a = MatMul(h, w) g = Tanh(a) o = Abs(g)"), "o"),
        (scan("k = Add(e, h) g = Tanh(k) o = Relu(g)"), scan("k = Sub(e, h) g = Tanh(k) o = Relu(g)"), "k"),
        (nested("j = Add(a, b) p = Tanh(j)"), nested("j = Sub(a, b) p = Tanh(j)"), "j"),
    ],
    ids=["operator", "beside a rewriting", "weight", "loop", "scan", "nested"],
)
def test_a_fault_in_a_body_is_named_with_the_inputs_that_show_it(
    before: ModelProto, after: ModelProto, where: str, tmp_path: Path
) -> None:
    comparison = compared(tmp_path, before, after)
    found = list(named(comparison))
    assert comparison.verdict is Equality.DIFFERENT and where in dict(found), text_of(comparison)
    assert dict(found)[where].startswith("of seed") and f"'{where}' differs from" in text_of(comparison)


def test_a_fault_of_a_later_iteration_is_named(tmp_path: Path) -> None:
    late = "f = Cast<to = 1>(i) p = Sub(f, six) q = Relu(p) j = {} g = Tanh(j) o = Relu(g)"
    before, after = (loop(late.format(sum_), 9, six=np.float32(6)) for sum_ in ("Add(h, q)", "Sub(h, q)"))
    comparison = compared(tmp_path, before, after)
    assert dict(named(comparison)).get("j", "").endswith(", iteration 8"), text_of(comparison)


def test_what_the_second_turn_alone_shows_is_different(tmp_path: Path) -> None:
    """Of a Loop that turns as often as an input says."""
    ends = "(float[4,8] x, int64 n) => (float[4,8] y)"
    body = "l (int64 i, bool c, float[4,8] h) => (bool d, float[4,8] g) {{ d = Identity(c) {} g = Add(h, p) }}"
    turns = [("", body.format("p = Mul(h, two)")), ("p = Mul(x, two)", body.format(""))]
    tensors = {**TENSORS, "yes": np.bool_(True)}
    within, once = (
        small_model(f"{ends} {{ {before} y = Loop(n, yes, x) <body = {inner}> }}", **tensors) for before, inner in turns
    )
    for pair in ((within, once), (once, within)):
        assert compared(tmp_path, *pair).verdict is Equality.DIFFERENT


def test_rows_that_a_body_took_one_by_one_are_no_difference(tmp_path: Path) -> None:
    """The runtime computes a body in single precision."""
    ends = "(float[4,8] x) => (float[4,8] y)"
    row = "l (float[8] h, float[8] e) => (float[8] g, float[8] o) { g = Neg(h) o = Softmax(e) }"
    rows = f"{{ u, y = Scan<num_scan_inputs = 1, body = {row}>(b, x) }}"
    body, whole = small_model(f"{ends} {rows}", **TENSORS), small_model(f"{ends} {{ y = Softmax(x) }}")
    for pair in ((body, whole), (whole, body)):
        comparison = compared(tmp_path, *pair)
        assert comparison.verdict is Equality.TESTED, text_of(comparison)


def test_a_branch_that_no_input_takes_may_be_proved(tmp_path: Path) -> None:
    bound = np.float32(1e9)
    before, after = (branches(f"{part.format('x')} u = Relu(k)", bound=bound) for part in PRODUCT)
    comparison = compared(tmp_path, before, after)
    assert comparison.verdict is Equality.PROVED and "no input runs it" in text_of(comparison)
    wrong = branches(f"{PRODUCT[1].format('x')} u = Tanh(k)", bound=bound)
    comparison = compared(tmp_path, before, wrong)
    assert comparison.verdict is Equality.UNDECIDED and "no input takes its then_branch" in text_of(comparison)
    assert "Tanh 'u' computes what Relu 'u' computed" in text_of(comparison)
    first, *lines = text_of(comparison).splitlines()
    assert first.endswith("no input takes its then_branch")
    assert any(line.endswith("undecided: it differs on what its node reads, which no input shows") for line in lines)
    assert not any(line.endswith(": different") for line in lines)
    (region,) = as_json(comparison)["regions"]
    told = [(body["verdict"], [inner["verdict"] for inner in body["regions"]]) for body in region["bodies"]]
    assert told[0] == ("undecided", ["proved equal", "undecided"])


def test_bodies_that_are_run_in_another_way_prove_nothing(tmp_path: Path) -> None:
    body = "k = Add({}) g = Tanh(k) o = Relu(g)"
    backwards = "scan_input_directions = [1], "
    comparison = compared(tmp_path, scan(body.format("e, h")), scan(body.format("h, e"), backwards))
    assert comparison.verdict is Equality.DIFFERENT, text_of(comparison)
    before, after = branches("r = Neg(x) u = Neg(r)", bound=np.float32(2.0)), branches("u = Identity(x)", bound=np.float32(2.7))
    comparison = compared(tmp_path, before, after)
    assert comparison.verdict in (Equality.DIFFERENT, Equality.UNDECIDED), text_of(comparison)


def test_two_nodes_that_take_one_condition_are_not_mistaken(tmp_path: Path) -> None:
    ends = "(float[4,8] x) => (float[4,8] y, float[4,8] z)"
    node = """{0} = If(c) <then_branch = t{0} () => (float[4,8] u{0}) {{ {1} }},
        else_branch = e{0} () => (float[4,8] v{0}) {{ v{0} = {2} }}>"""

    def two(first: str, second: str) -> ModelProto:
        parts = node.format("y", first, "Neg(x)"), node.format("z", second, "Abs(x)")
        return small_model(f"{ends} {{ m = ReduceMax<keepdims = 0>(x) c = Greater(m, bound) {' '.join(parts)} }}", **TENSORS)

    before = two("a = MatMul(x, w) uy = Add(a, b)", "a = MatMul(x, w) uz = Sub(a, b)")
    assert compared(tmp_path, before, two("uy = Gemm(x, w, b)", "a = MatMul(x, w) uz = Sub(a, b)")).verdict is Equality.PROVED
    comparison = compared(tmp_path, before, two("uy = Gemm(x, w, b)", "a = MatMul(x, w) uz = Add(a, b)"))
    assert comparison.verdict is Equality.DIFFERENT and [name for name, _ in named(comparison)] == ["uz"], text_of(comparison)


SUM = "k = Add(q, h) g = Tanh(k) o = Relu(g)"
PRODUCTS = "q = MatMul(x, w)", "f = MatMul(x, w) q = Add(f, b)"


def outside(around: str, body: str, count: int = 3) -> ModelProto:
    """A loop behind what is computed around it."""
    text = f"""(float[4,8] x) => (float[4,8] y, float[{count},4,8] s) {{ {around} y, s = Loop(n, yes, x)
        <body = l (int64 i, bool c, float[4,8] h) => (bool d, float[4,8] g, float[4,8] o) {{ d = Identity(c) {body} }}> }}"""
    return small_model(text, **TENSORS, n=count, yes=np.bool_(True))


@pytest.mark.parametrize("is_forward", [True, False], ids=["out", "in"])
@pytest.mark.parametrize(
    ("within", "moved"),
    [
        (branches(f"{PRODUCTS[0]} u = Relu(q)"), branches("u = Relu(q)", around=PRODUCTS[0])),
        (branches(f"{PRODUCTS[1]} u = Relu(q)"), branches("q = Add(f, b) u = Relu(q)", around="f = MatMul(x, w)")),
        (
            branches(f"{PRODUCTS[0]} u = Relu(q)", "v = Tanh(p)", "p = MatMul(x, w)"),
            branches("u = Relu(p)", "v = Tanh(p)", "p = MatMul(x, w)"),
        ),
        (
            branches("u = Relu(q)", "j = MatMul(x, w) l = Add(j, b) v = Neg(l)", PRODUCTS[1]),
            branches("u = Relu(q)", "v = Neg(q)", PRODUCTS[1]),
        ),
        (outside("", f"{PRODUCTS[0]} {SUM}"), outside(PRODUCTS[0], SUM)),
        (outside("e = Neg(x)", f"q = Abs(e) {SUM}"), outside("e = Neg(x) q = Abs(e)", SUM)),
        (nested("j = MatMul(x, w) p = Tanh(j)"), nested("p = Tanh(a)")),
        (nested("j = Neg(x) p = Tanh(j)"), nested("p = Tanh(j)", "j = Neg(x)")),
    ],
    ids=["branch", "two", "shared", "other branch", "loop", "chain", "nested", "one level"],
)
def test_what_moved_into_a_body_or_out_of_it_is_proved(
    within: ModelProto, moved: ModelProto, is_forward: bool, tmp_path: Path
) -> None:
    comparison = compared(tmp_path, *((within, moved) if is_forward else (moved, within)))
    assert comparison.verdict is Equality.PROVED, text_of(comparison)


@pytest.mark.parametrize("is_forward", [True, False], ids=["out", "in"])
@pytest.mark.parametrize(
    ("within", "moved"),
    [
        (branches(f"{PRODUCTS[0]} u = Relu(q)"), branches("u = Relu(q)", around="p = Neg(x) q = MatMul(p, w)")),
        (branches("q = Neg(x) u = Relu(q)", "v = Tanh(x)"), branches("u = Relu(q)", "v = Tanh(x)", "q = Tanh(x)")),
        (outside("", f"{PRODUCTS[0]} {SUM}"), outside(f"{PRODUCTS[0]} l = Neg(q)", SUM.replace("q", "l"))),
        (outside("", f"q = MatMul(h, w) {SUM}"), outside(PRODUCTS[0], SUM)),
        (nested("j = MatMul(x, w) p = Tanh(j)"), nested("p = Tanh(x)")),
    ],
    ids=["operand", "operator", "loop", "of an iteration", "nested"],
)
def test_what_moved_and_is_another_is_no_proof(within: ModelProto, moved: ModelProto, is_forward: bool, tmp_path: Path) -> None:
    comparison = compared(tmp_path, *((within, moved) if is_forward else (moved, within)))
    assert comparison.verdict is Equality.DIFFERENT, text_of(comparison)


def test_what_is_drawn_in_each_iteration_is_not_drawn_once(tmp_path: Path) -> None:
    drawing = "q = RandomNormalLike(x)"
    comparison = compared(tmp_path, outside("", f"{drawing} {SUM}"), outside(drawing, SUM))
    assert comparison.verdict in (Equality.UNDECIDED, Equality.DIFFERENT), text_of(comparison)


def test_reports_say_what_is_known_of_bodies(tmp_path: Path) -> None:
    before, after = (branches(f"{part.format('x')} u = Relu(k)") for part in PRODUCT)
    comparison = compared(tmp_path, before, after)
    (region,) = comparison.regions
    (inner,) = [body for body in as_json(comparison)["regions"][0]["bodies"] if body["regions"]]
    assert inner["verdict"] == "proved equal" and inner["regions"][0]["before"] == ["MatMul 'a'", "Add 'k'"]
    assert as_json(comparison)["regions"][0]["rules"] == inner["regions"][0]["rules"] != []
    page = as_page(comparison)
    assert all(rule in page for rule in inner["regions"][0]["rules"])
    assert any(
        "in then_branch of If 'y': MatMul 'a', Add 'k' -> Gemm 'k': proved equal" in line
        for line in region_lines(comparison, region)
    )
