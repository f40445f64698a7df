"""onnxruntime's GroupQueryAttention (domain ``com.microsoft``), by its decomposition (:mod:`mugraph.ops.attention`).

It is causal. Attributes are absent where a node has no use of them: ``past``, that there is a cache; ``packed``, that queries,
keys and values stand side by side in one operand; ``local_window_size``, of how many positions each sees, its own among them;
``softcap``.

Its lengths are of two kinds. Where every sequence has as many positions as the cache and the new ones, which its file says by
sizes, they are no operands. Else ``total`` is there, the number of positions of the longest sequence, and two operands are:
``seqlens_k``, of each sequence the last position that counts, int32[b] or int32[b,1] (``length_axes``), and the total as a
tensor, int32[]. The new positions of a sequence are then the last ones that count, what was before them is read of the cache, and
what this has behind them is not. As the operator's contract has it, a sequence is no longer than the total and no shorter than
what is new, but for one case: where the total is what is new, nothing was before, and shorter sequences are filled up at their
end. What the operator gives for such places is not defined, nor are they ever read; here it is what causal attention gives.

The cache that it gives is as long as the total, or as the one that it reads where that is longer; of the latter what counts is
kept, what is new stands behind it, and all else is zero. So it is where the results are tensors of their own. Where they are
bound to the buffers that it reads, the operator writes what is new and leaves everything else as it was: no position that counts
differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mugraph.ops.attention import (
    ATTENTION_TRAITS,
    attended,
    causal_mask,
    expect_rank3,
    into_heads,
    joined,
    optional_inputs,
    repeated,
    resolved_scale,
    written_scale,
)
from mugraph.ops.base import RuntimeFacts, applied, floating, operands
from mugraph.ops.composite import RUNTIME_DOMAIN, contract, define, expect_shape
from mugraph.ops.contrib_attention import expect_cache
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    FormInput,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Reading,
    attributes_of,
    integers,
    type_of,
)
from mugraph.ops.rotary import rotated
from mugraph.terms.equations import divided
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType, at_most, same_dim, smaller
from mugraph.terms.term import Term, const

_INPUTS = (
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "seqlens_k",
    "total_sequence_length",
    "cos_cache",
    "sin_cache",
    "position_ids",
    "attention_bias",
    "head_sink",
)
_LENGTHS = _INPUTS[5:7]


def _names(attrs: AttrMap, count: int) -> tuple[str, ...]:
    """The operands of GroupQueryAttention. Raises ShapeError where there cannot be so many."""
    names = _INPUTS[: 1 if attrs.get("packed") else 3] + (_INPUTS[3:5] if attrs.get("past") else ())
    names += _LENGTHS if "total" in attrs else ()
    if count not in (len(names), len(names) + 2):
        raise ShapeError(f"GroupQueryAttention of {count} operands" + (", with one table" if count == len(names) + 1 else ""))
    return names if count == len(names) else names + _INPUTS[7:9]


def _sizes(attrs: AttrMap, of: Mapping[str, TensorType]) -> tuple[Dim, Dim, Dim]:
    """Entries of a head, new positions, and those of the cache."""
    packed = attrs["num_heads"] + 2 * attrs["kv_num_heads"]
    size = divided(of["query"].shape[-1], packed if attrs.get("packed") else attrs["num_heads"])
    return size, of["query"].shape[1], of["past_key"].shape[2] if attrs.get("past") else 0


def _group_query(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    names = _names(attrs, len(types))
    x, of = dict(zip(names, operands(len(types)), strict=True)), dict(zip(names, types, strict=True))
    heads, groups = attrs["num_heads"], attrs["kv_num_heads"]
    size, length, past = _sizes(attrs, of)
    if attrs.get("packed"):
        widths = (heads * size, groups * size, groups * size)
        q, k, v = (Term("Split", (("axis", -1), ("sizes", widths)), (x["query"],), i) for i in range(3))
    else:
        q, k, v = x["query"], x["key"], x["value"]
    q, k, v = (into_heads(a, n * size, n) for a, n in ((q, heads), (k, groups), (v, groups)))
    counted = _CountedCache(attrs, x["seqlens_k"], length, past) if "total" in attrs else None
    if "cos_cache" in x:
        tables = [(x[name], of[name].shape[0]) for name in ("cos_cache", "sin_cache")]
        cos, sin = (counted.rows(a) if counted else _rows(a, rows, past, length) for a, rows in tables)
        half = of["cos_cache"].shape[-1]
        q, k = (rotated(a, cos, sin, size, 2 * half, attrs["rotary_interleaved"]) for a in (q, k))
    every = [k, v]
    if attrs.get("past"):
        every = [applied("Concat", x[name], a, axis=-2) for name, a in (("past_key", k), ("past_value", v))]
    columns = past + length
    wide = [repeated(a, groups, divided(heads, groups), (columns, size)) for a in every]
    if counted is not None:
        seen = [counted.seen()]
    elif "local_window_size" in attrs:
        seen = [applied("BandMask", after=past, before=attrs["local_window_size"] - 1 - past, columns=columns, rows=length)]
    else:
        seen = causal_mask({"unidirectional": same_dim(length, 1) is not True}, length, columns)
    result = attended(q, wide[0], wide[1], attrs["scale"], (), seen, softcap=attrs.get("softcap", 0.0))
    if counted is not None:
        cache = (of["query"].shape[0], groups, size)
        every = [counted.present(x[name], a, cache) for name, a in (("past_key", k), ("past_value", v))]
    return (joined(result, heads * size), *every)


class _CountedCache:
    """What follows from the last position of each sequence that counts.

    Args:
        last: the operand that tells it.
        length: new positions.
        past: those of the cache.
    """

    def __init__(self, attrs: AttrMap, last: Term, length: Dim, past: Dim) -> None:
        self._length, self._past, self._total = length, past, attrs["total"]
        self._window: Dim | None = attrs.get("local_window_size")
        self._axes: int = attrs["length_axes"]
        last = applied("Cast", last, to=DataType.INT64)  # as places are
        if same_dim(length, 1) is not True:
            behind = applied("Add", last, _numbers(1, 1))
            last = applied("Max", applied("Sub", behind, _numbers(length, 1)), _numbers(0, 1))
        self._first = last
        """The first new position of each sequence, [b] or [b,1]."""

    def _under(self, rank: int) -> Term:
        """The first new positions in front of axes of others, [b,1,..] of so many axes."""
        return applied("Unsqueeze", self._first, axes=tuple(range(self._axes - rank, 0)))

    def rows(self, table: Term) -> Term:
        """The rows of a table at the new positions, [b,1,s,..]."""
        if same_dim(self._length, 1):
            found = applied("Gather", table, self._first, axis=-2)
            return applied("Unsqueeze", found, axes=(-3, -2) if self._axes == 1 else (-3,))
        places = applied("Add", self._under(2), _numbers(0, self._length))
        return applied("Unsqueeze", applied("Gather", table, places, axis=-2), axes=(-3,))

    def seen(self) -> Term:
        """Which of the cache and of the new positions behind it the latter see, [b,1,s,t]: places are compared, and no more."""
        columns, window = self._past + self._length, self._window
        old = applied("Less", _numbers(0, columns), self._under(4))
        new = {"after": self._past, "columns": columns, "rows": self._length}
        if same_dim(self._length, 1):
            if window is not None:
                old = applied("And", old, applied("Less", self._under(4), _numbers(window, columns)))
            return applied("Or", old, applied("BandMask", before=-self._past, **new))
        before = self._length if window is None else window - 1 - self._past
        if window is not None:
            rows = applied("Unsqueeze", _numbers(0, self._length), axes=(-1,))
            old = applied("And", old, applied("Less", applied("Add", self._under(4), rows), _numbers(window, columns)))
        behind = applied("LessOrEqual", _numbers(self._past, 1), _numbers(0, columns))
        return applied("Or", old, applied("And", behind, applied("BandMask", before=before, **new)))

    def present(self, past: Term, new: Term, sizes: tuple[Dim, Dim, Dim]) -> Term:
        """The cache with what is new.

        Args:
            past, new: keys or values, [b,h,past,d] and [b,h,s,d].
            sizes: b, h and d.
        """
        batch, heads, size = sizes
        whole = _present_length(self._past, self._total)
        places = applied("Unsqueeze", _numbers(0, whole), axes=(-1,))
        has_more = same_dim(whole, self._past) is not True
        if same_dim(self._length, 1):
            moved, within = new, applied("Equal", places, self._under(4))
            filling = applied("Expand", new, shape=(batch, heads, whole - self._past, size))
        else:
            distance = applied("Sub", places, self._under(4))
            is_new = applied("LessOrEqual", _numbers(0, 1), distance), applied("Less", distance, _numbers(self._length, 1))
            within = applied("And", *is_new)
            held = applied("Expand", applied("Where", within, distance, _numbers(0, 1)), shape=(batch, heads, whole, size))
            moved = applied("GatherElements", new, held, axis=-2)
            filling = applied("Slice", moved, axes=(-2,), starts=(self._past,), ends=(whole,), steps=(1,)) if has_more else moved
        if has_more:  # it is as long as the result then: what is behind the cache is no entry of it
            past = applied("Concat", past, filling, axis=-2)
        behind = applied("Where", within, moved, const(0.0))
        return applied("Where", applied("Less", places, self._under(4)), past, behind)


def _numbers(first: Dim, count: Dim) -> Term:
    """``count`` numbers from one on."""
    return applied("Range", start=first, limit=first + count, dtype=DataType.INT64)


def _present_length(past: Dim, total: Dim) -> Dim:
    """Positions of the cache that is returned: the longer of the one that is read and of the total."""
    return past + total - smaller(past, total)


def _rows(table: Term, size: Dim, first: Dim, count: Dim) -> Term:
    """Rows of a table of ``size`` for positions in their order.

    Behind a cache they are looked up, since the run tells whether there are any. Where there are none onnxruntime ends in an
    error; here these are the last ones, so that whoever reads them stays within the table.
    """
    if first == 0:
        return applied("Slice", table, axes=(-2,), starts=(0,), ends=(count,), steps=(1,))
    if at_most(count, size):
        start = smaller(first, size - count)
        places = applied("Range", start=start, limit=start + count, dtype=DataType.INT64)
    else:
        places = applied("Min", applied("Range", start=first, limit=first + count, dtype=DataType.INT64), _numbers(size - 1, 1))
    return applied("Gather", table, places, axis=-2)


def _check_group_query(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    of = dict(zip(_names(attrs, len(types)), types, strict=True))
    q = of["query"]
    expect_rank3("GroupQueryAttention", [of[name] for name in ("query", "key", "value") if name in of])
    floating([type_ for name, type_ in of.items() if name not in _LENGTHS])
    size, _, _ = _sizes(attrs, of)
    groups = attrs["kv_num_heads"]
    divided(attrs["num_heads"], groups)
    has_tables = "cos_cache" in of
    divided(size, 16 if has_tables else 8)  # onnxruntime refuses others
    new = TensorType(q.dtype, (*q.shape[:2], size * groups))
    for name in ("key", "value"):
        expect_shape("the keys and values of GroupQueryAttention", of.get(name, new), new.shape, q.dtype)
    if attrs.get("past"):
        expect_cache("GroupQueryAttention", of, (new, new), groups)
    if "total" in attrs:
        _check_lengths(attrs, of)
    if has_tables:
        for table in (of["cos_cache"], of["sin_cache"]):
            if table.rank != 2:
                raise ShapeError(f"GroupQueryAttention with the table {table}")
            divided(table.shape[1], 8)
            expect_shape("the tables of GroupQueryAttention", table, of["cos_cache"].shape, q.dtype)


def _check_lengths(attrs: AttrMap, of: Mapping[str, TensorType]) -> None:
    """Raises ShapeError or Undecided for lengths that are none."""
    if not attrs.get("past"):
        raise ShapeError("GroupQueryAttention whose lengths are computed, without a cache")
    shape = (of["query"].shape[0], 1)[: attrs["length_axes"]]
    expect_shape("the lengths of GroupQueryAttention", of["seqlens_k"], shape, DataType.INT32)
    expect_shape("the total of GroupQueryAttention", of["total_sequence_length"], (), DataType.INT32)


def _read_group_query(node: ForeignNode) -> Reading:
    """Lengths are sizes, where every key of every sequence counts, and so many were before as the cache has, or operands."""
    attributes = attributes_of(
        node,
        num_heads=0,
        kv_num_heads=0,
        scale=0.0,
        do_rotary=0,
        rotary_interleaved=0,
        softcap=0.0,
        local_window_size=-1,
        smooth_softmax=-1,
        causal=1,
        k_quant_type="NONE",
        v_quant_type="NONE",
    )
    packed = not (node.present(1) or node.present(2))
    optional = optional_inputs(node, _INPUTS, _INPUTS[1:9] if packed else _INPUTS[3:9], 1 if packed else 3)
    window = int(attributes["local_window_size"])
    plain = attributes["softcap"] >= 0 and (window == -1 or window > 0) and attributes["smooth_softmax"] in (-1, 0)
    if not plain or attributes["causal"] != 1 or {attributes["k_quant_type"], attributes["v_quant_type"]} != {"NONE"}:
        raise NotUnderstood("GroupQueryAttention with an empty window, a smooth softmax or quantised keys")
    if ("cos_cache" in optional) != bool(attributes["do_rotary"]):
        raise NotUnderstood("GroupQueryAttention with tables and without rotary embedding, or the reverse")
    q, has_past = type_of(node), node.present(3)
    if has_past != node.present(4):
        raise NotUnderstood("GroupQueryAttention with past keys and no past values, or the reverse")
    if q.rank != 3 or (has_past and type_of(node, 3).rank != 4):
        raise NotUnderstood(f"GroupQueryAttention of {q}")
    counted = _counted(node)
    most = type_of(node, 3).shape[2] + q.shape[1] if has_past else q.shape[1]
    heads, groups = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
    attrs = {
        "num_heads": heads,
        "kv_num_heads": groups,
        "scale": resolved_scale(attributes["scale"], divided(q.shape[-1], heads + 2 * groups if packed else heads)),
        "rotary_interleaved": bool(attributes["rotary_interleaved"]) if attributes["do_rotary"] else False,
        **({"local_window_size": window} if window > 0 and not at_most(most, window) else {}),
        **({"softcap": float(attributes["softcap"])} if attributes["softcap"] else {}),
        **({"past": True} if has_past else {}),
        **({"packed": True} if packed else {}),
        **counted,
    }
    return Reading(attrs, tuple(i for i in range(len(_INPUTS)) if node.present(i) and (counted or i not in (5, 6))))


def _counted(node: ForeignNode) -> dict[str, Any]:
    """The attributes of lengths that are operands; none where sizes say them.

    Raises NotUnderstood where neither is so: constants that are unequal, a total that is no size.
    """
    q, has_past = type_of(node), node.present(3)
    length, lengths = q.shape[1], type_of(node, 5)
    past = type_of(node, 3).shape[2] if has_past else 0
    last, total = node.everywhere(5), node.everywhere(6)
    shown = f"GroupQueryAttention of {q} with the lengths {lengths}"
    if total is None:
        raise NotUnderstood(f"{shown} and a total that is no size of the model")
    if last is not None and same_dim(last, past + length - 1) and same_dim(total, past + length):
        if lengths.rank != 1 or same_dim(lengths.shape[0], q.shape[0]) is not True:
            raise NotUnderstood(shown)
        return {}
    if not has_past:
        raise NotUnderstood(f"{shown}, which may be shorter than their keys, and no cache")
    if lengths.rank not in (1, 2):
        raise NotUnderstood(shown)
    return {"total": total, "length_axes": lengths.rank}


def _write_group_query(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    names = _names(attrs, len(types))
    of = dict(zip(names, types, strict=True))
    _, new, past = _sizes(attrs, of)
    form = {**{name: attrs[name] for name in ("num_heads", "kv_num_heads")}, "scale": written_scale(attrs)}
    form |= {name: attrs[name] for name in ("local_window_size", "softcap") if name in attrs}
    if "cos_cache" in of:
        form |= {"do_rotary": 1, "rotary_interleaved": int(attrs["rotary_interleaved"])}
    places: dict[str, FormInput] = {name: i for i, name in enumerate(names)}
    if "total" not in attrs:
        places |= _written_lengths(of, past + new)
    inputs = tuple(places.get(name) for name in _INPUTS[:9])
    return OnnxForm("GroupQueryAttention", inputs, form, RUNTIME_DOMAIN, names_all="past_key" in of)


def _written_lengths(of: Mapping[str, TensorType], total: Dim) -> dict[str, FormInput]:
    """Lengths that are sizes, as constants. Raises NotExpressible where only a run tells them, or a table is too short."""
    batch, length = integers((of["query"].shape[0], total), "the lengths of GroupQueryAttention").tolist()
    rows = of["cos_cache"].shape[0] if "cos_cache" in of else length
    if not isinstance(rows, int) or rows < length:
        raise NotExpressible(f"GroupQueryAttention of {length} positions with a table {of['cos_cache']}")
    return {"seqlens_k": np.full((batch,), length - 1, np.int32), "total_sequence_length": np.asarray(length, np.int32)}


def _ranks_group_query(attrs: AttrMap, count: int) -> list[int]:
    ranks = {"past_key": 4, "past_value": 4, "cos_cache": 2, "sin_cache": 2, "total_sequence_length": 0}
    ranks |= {"seqlens_k": attrs.get("length_axes", 1)}
    return [ranks.get(name, 3) for name in _names(attrs, count)]


def _appending(attrs: AttrMap) -> AttrMap | None:
    """The attributes by which every position sees itself alone; ``None`` where lengths are sizes, of a cache that is copied."""
    return {**attrs, "local_window_size": 1} if "total" in attrs else None


define(
    "GroupQueryAttention",
    (1, 9),
    _group_query,
    check=_check_group_query,
    read=_read_group_query,
    write=_write_group_query,
    contract=contract(
        "GroupQueryAttention",
        "num_heads kv_num_heads scale do_rotary rotary_interleaved local_window_size softcap",
        9,
        int32=[5, 6],
    ),
    ranks=_ranks_group_query,
    traits=ATTENTION_TRAITS,
    runtime=RuntimeFacts(kernels=3, rest=_appending),
    samples=(
        "GroupQueryAttention[kv_num_heads=4,num_heads=12,scale=0.125](q, k, v) | q:[1,30,384] k:[1,30,128] v:[1,30,128]",
        "GroupQueryAttention[kv_num_heads=4,num_heads=12,scale=0.125](q, k, v, c, s) "
        "| q:[1,30,384] k:[1,30,128] v:[1,30,128] c:[30,16] s:[30,16]",
        "GroupQueryAttention[kv_num_heads=2,local_window_size=32,num_heads=4,scale=0.125](q, k, v) "
        "| q:[1,128,256] k:[1,128,128] v:[1,128,128]",
        "GroupQueryAttention[kv_num_heads=4,num_heads=12,past=true,scale=0.125](q, k, v, p, r, c, s) "
        "| q:[1,1,384] k:[1,1,128] v:[1,1,128] p:[1,4,29,32] r:[1,4,29,32] c:[30,16] s:[30,16]",
        "GroupQueryAttention[kv_num_heads=4,num_heads=12,packed=true,past=true,scale=0.125](q, p, r) "
        "| q:[1,1,640] p:[1,4,29,32] r:[1,4,29,32]",
    ),
    defaults={"rotary_interleaved": False},
    sized=frozenset({"total"}),
)
