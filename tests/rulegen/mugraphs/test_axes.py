"""Named axes: movements are renamings, neighbours are one axis."""

from __future__ import annotations

import pytest

from mugraph.domains.base import Unsupported
from mugraph.terms.text import parse_term, parse_type
from rulegen.mugraphs.axes import NamedAxes


def named(text: str, **types: str) -> tuple[NamedAxes, dict[str, tuple[tuple[str, ...], ...]]]:
    root = parse_term(text)
    axes = NamedAxes([root], {name: parse_type(type_) for name, type_ in types.items()})
    return axes, {"": axes.dims(root), **{name: axes.dims(parse_term(name)) for name in types}}


def test_a_product_has_rows_columns_and_what_is_summed() -> None:
    axes, dims = named("MatMul(x, w)", x="[m,k]", w="[k,n]")
    assert (dims["x"], dims["w"], dims[""]) == ((("a0",), ("a1",)), (("a1",), ("a2",)), (("a0",), ("a2",)))
    assert [str(axes.sizes[axis]) for axis in ("a0", "a1", "a2")] == ["m", "k", "n"]


def test_batch_and_positions_of_a_product_with_weights_are_one_axis() -> None:
    axes, dims = named("MatMul(x, w)", x="[b,s,k]", w="[k,n]")
    assert dims["x"] == (("a0",), (), ("a1",)) and str(axes.sizes["a0"]) == "b*s"
    _, apart = named("MatMul(x, w)", x="[b,s,k]", w="[b,k,n]")
    assert apart["x"] == (("a0",), ("a1",), ("a2",))


def test_heads_are_digits_of_a_width() -> None:
    axes, dims = named("MatMul(Transpose[perm=(1,0,2)](Reshape[drop=1,shape=(h,d)](x)), y)", x="[s,h*d]", y="[h,d,t]")
    assert dims["x"][1] == (dims["y"][0][0], dims["y"][1][0]) and dims[""][0] == dims["y"][0]
    assert {str(size) for size in axes.sizes.values()} == {"s", "h", "d", "t"}


def test_rows_of_a_softmax_stay_apart() -> None:
    _, dims = named("Softmax[axis=-1](x)", x="[b,m,n]")
    assert dims[""] == (("a0",), (), ("a1",))
    _, whole = named("Exp(x)", x="[b,m,n]")
    assert whole[""] == (("a0",), (), ())


def test_dimensions_of_one_have_no_axis() -> None:
    _, dims = named("Add(x, Expand[shape=(b,m,n)](y))", x="[b,m,n]", y="[1,m,1]")
    assert dims["y"] == ((), dims["x"][1], ())


@pytest.mark.parametrize(
    ("text", "types", "reason"),
    [
        ("MatMul(x, Transpose[perm=(1,0)](x))", {"x": "[m,k]"}, "one axis twice"),
        ("Slice[axes=(-1,),ends=(2,),starts=(0,),steps=(1,)](x)", {"x": "[m,4]"}, "no operator of tiles"),
        ("Reshape[drop=2,shape=(3,2)](x)", {"x": "[2,3]"}, "a Reshape cuts"),
    ],
)
def test_what_has_no_named_axes(text: str, types: dict[str, str], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        named(text, **types)
