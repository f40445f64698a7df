"""Which shapes rest on a file's word alone."""

from __future__ import annotations

import pytest
from onnx.parser import parse_model

from mugraph.onnx import Model, claimed, distrusting, load

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1, "own" : 1]>'


def names(model: Model) -> set[str | None]:
    return {model.tables.names[value] for value in claimed(model)}


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ("[3,3]", {"a"}),
        ("[n,n]", {"a"}),
        ("[n,k]", {"a"}),  # the rank
        ("", {"a"}),  # a number
        ("[]", set()),  # of unknown rank
    ],
)
def test_a_foreign_operator_makes_what_the_file_says(shape: str, wanted: set[str]) -> None:
    proto = parse_model(f"""{HEAD}
        g (float[3,3] x) => (float[3,3] y) <float{shape} a, float[3,3] b> {{
            a = com.microsoft.Inverse(x) b = Neg(x) y = Add(a, b)
        }}""")
    assert names(load(proto)) - {"y"} == wanted


def test_what_inference_or_a_record_tells_is_no_claim() -> None:
    """A size that stands nowhere else says nothing either."""
    proto = parse_model(f"""{HEAD}
        g (float[3,n] x) => (float[3,n] y, int64[2,many] where, float[n,3] z)
        <float[n,3] t, float[3,n] a> {{
            t = Transpose(x) a = own.F(x) y = Neg(a) where = NonZero(x) z = Einsum<equation = "ij->ji">(x)
        }}
        <opset_import: ["" : 21], domain: "own"> F (u) => (w) {{ w = Neg(u) }}""")
    assert names(load(proto)) == set()


def test_what_a_loop_is_said_to_carry_is_a_claim() -> None:
    proto = parse_model(f"""{HEAD}
        g (float[2,3] x, int64 trip) => (float[r,c] y) {{
            y = Loop(trip, , x) <body = b (int64 i, bool go, float[2,3] v) => (bool on, float[m,3] w) {{
                on = Identity(go) w = Concat<axis = 0>(v, v)
            }}>
        }}""")
    model = load(proto)
    assert "v" in names(model)
    other = distrusting(model, ["v"])
    assert other.tables.types[other.values["v"]] is None and "v" not in names(other)
    assert load(proto).distrusted == frozenset() and other.distrusted == {"v"}
