"""Masks that are bands of positions, constant and computed: what is recognised, what is not, and the kernels that come of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from mugraph.domains.range import Range
from mugraph.terms.shape import DataType, Dim, TensorType, symbol
from mugraph.terms.term import AttrVar, var
from rewriter.cost import get_device
from rewriter.cost.schedules import ranked
from rules_db.solving import determined
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.guards import GUARDS
from tests.support.block_kernels import F16, kernel_of_terms, tensor
from tests.support.masks import LENGTH, added, attention, kept_sources, within

# What the guard reads


def read(mask: np.ndarray, shape: tuple[Dim, ...] | None = None) -> tuple[object, ...] | None:
    """What a rule reads off the entries of a mask for ``band(m, $before, $after)``; ``None`` where it does not hold."""
    types = {np.dtype(bool): DataType.BOOL, np.dtype(np.float16): DataType.FLOAT16, np.dtype(np.float32): DataType.FLOAT}
    type_ = TensorType(types[mask.dtype], shape or mask.shape)
    facts = Facts(lambda term: type_, lambda term: Range.top(), {}, lambda term: mask)
    asked = Condition("band", (var("m"), AttrVar("before"), AttrVar("after")))
    binding = dict[str, object]()
    for variable in determined([asked], ()):
        try:
            binding[variable.name] = variable.value(facts)
        except ValueError:
            return None
    sides = binding["before"], binding["after"]
    assert GUARDS["band"].predicate(facts, var("m"), *sides) is True
    for other in ((binding["before"], 77), (77, binding["after"])):
        assert GUARDS["band"].predicate(facts, var("m"), *other) is False, "another width is another mask"
    return sides


@pytest.mark.parametrize(
    ("mask", "sides"),
    [
        (within(9, 9, 2, 3), (2, 3)),
        (within(9, 9, 0, 0), (0, 0)),
        (within(9, 9, 7, 0), (7, 0)),
        (within(9, 9, 8, 0), (9, 0)),  # every key before it: as wide as the mask
        (within(9, 9, 2, 8), (2, 9)),
        (within(5, 9, 0, 6), (0, 6)),
        (within(5, 9, -2, 3), (-2, 3)),  # keys that all lie ahead
        (np.broadcast_to(within(9, 9, 2, 3), (2, 3, 9, 9)), (2, 3)),
        (np.stack([within(9, 9, 2, 3)] * 2), (2, 3)),
        (added(within(9, 9, 2, 3)), (2, 3)),
        (added(within(9, 9, 2, 3), -65504, np.float16), (2, 3)),
        (added(within(9, 9, 2, 3), -3e38), (2, 3)),
        (added(within(9, 9, 2, 0)), (2, 0)),
        (added(within(9, 9, 8, 0)), None),  # which is causal
        (added(within(9, 9, 2, 3), -10000), None),  # which hides little of large scores
        (added(within(9, 9, 2, 3), np.inf), None),
        (added(within(9, 9, 2, 3)) + 1, None),
        (within(9, 9, 8, 8), None),  # hides nothing
        (within(9, 9, 8, -1), None),  # the first position sees nothing
        (within(9, 5, 2, 0), None),  # nor do the last ones
        (np.stack([within(9, 9, 2, 3), within(9, 9, 3, 3)]), None),
        (~within(9, 9, 2, 3), None),
        (np.ones(9, bool), None),
    ],
)
def test_what_a_mask_shows_is_read_off_its_entries(mask: np.ndarray, sides: tuple[int, int] | None) -> None:
    assert read(mask) == sides


def test_one_entry_makes_a_mask_no_band() -> None:
    mask = within(9, 9, 2, 3)
    for row in range(9):
        for column in range(9):
            other = mask.copy()
            other[row, column] ^= True
            assert read(other) is None and read(added(other)) is None


def test_a_side_without_a_limit_is_as_wide_as_the_mask_whatever_its_size() -> None:
    n = symbol("n")
    assert read(within(9, 9, 2, 8), (n, n)) == (2, n)


# Whole models


NEAR = "lowest = Sub(query, width) near = Greater(key, lowest) past = LessOrEqual(key, query) seen = And(near, past)"
APART = "ahead = Sub(key, query) apart = Abs(ahead) seen = LessOrEqual(apart, width)"


@pytest.mark.parametrize(
    ("proto", "band"),
    [
        (attention(added(within(LENGTH, LENGTH, 16, 16))), f"after=16,before=16,columns={LENGTH}"),
        (attention(within(LENGTH, LENGTH, 7, 0), "Where"), f"after=0,before=7,columns={LENGTH}"),
        (attention(None, "Where", NEAR), "after=0,before=15,columns=s"),
        (attention(None, "Add", NEAR, float(np.finfo(np.float32).min)), "after=0,before=15,columns=s"),
        (attention(None, "Where", APART), "after=16,before=16,columns=s"),
    ],
    ids=["added", "chosen", "causal and computed", "finite and computed", "both sides and computed"],
)
def test_a_window_is_one_kernel_whose_loop_has_its_bounds(proto: ModelProto, band: str, tmp_path: Path) -> None:
    source = kept_sources(proto, tmp_path)
    (node,) = onnx.load(tmp_path / "out.onnx").graph.node
    assert node.op_type == "Kernel" and list(node.input) == ["q", "k", "v"], "no mask is read"
    assert f"BandMask[{band}" in source and "t_first = tl.maximum" in source and "t_last = tl.minimum" in source


def test_what_is_no_band_is_read_as_it_is(tmp_path: Path) -> None:
    almost = within(LENGTH, LENGTH, 16, 16)
    almost[100, 40] = True
    assert "BandMask" not in kept_sources(attention(almost, "Where"), tmp_path)


def test_a_row_that_sees_nothing_keeps_its_mask(tmp_path: Path) -> None:
    seen = within(LENGTH, LENGTH, 16, -1)  # nothing is before the first position
    assert "BandMask" not in kept_sources(attention(added(seen, float(np.finfo(np.float32).min))), tmp_path)


# What it is likely to take


def microseconds(before: int, after: int) -> float:
    """The estimate for twelve heads of 64 side by side, 8×2048 positions, in half precision on an H200."""
    types = {x: tensor(F16, 8, 2048, 768) for x in "qkv"}
    heads = {x: f"Transpose[perm=(1,0,2)](Reshape[drop=1,shape=(12,64)]({x}))" for x in "qkv"}
    scores = f"Mul(MatMul({heads['q']}, Transpose[perm=(1,0)]({heads['k']})), 0.125)"
    scores = f"Where(BandMask[after={after},before={before},columns=2048,rows=2048](), {scores}, -inf)"
    attended = f"Transpose[perm=(1,0,2)](MatMul(Softmax[axis=-1]({scores}), {heads['v']}))"
    kernel = kernel_of_terms("attention", types, {"y": f"Reshape[drop=2,shape=(768,)]({attended})"})
    return ranked(kernel, get_device("h200"), most=1)[0][0]


def test_the_estimate_follows_the_width() -> None:
    times = [microseconds(width, 0) for width in (64, 256, 512, 1024, 2048)]
    assert times == sorted(times) and times[0] < 150
    assert 2.5 * times[0] < times[-1] and microseconds(64, 64) < 150
    assert microseconds(0, 512) == pytest.approx(microseconds(512, 0), rel=0.2)
