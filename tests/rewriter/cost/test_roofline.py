"""The roofline: what is charged, and that it is sane beside times that were measured (on an H200, in CUDA graphs, fp16)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mugraph.blocks.operator import KERNEL, kernel_attrs
from mugraph.ops import get_operator
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, ShapeError, TensorType
from mugraph.terms.term import Term, make_attrs, walk
from mugraph.terms.text import parse_term, parse_type
from rewriter.cost import DEVICES, CostModel, ProfileStore, roofline
from rewriter.cost.roofline import node_microseconds
from rewriter.kernels.fuse.lower import lower
from tests.support.graphs import Builder
from tools.ship.probe import Probe, probes

H200 = DEVICES["h200"]


def half(*shapes: str) -> list[TensorType]:
    return [parse_type(f"float16[{shape}]") for shape in shapes]


def price(op: str, operands: Sequence[TensorType], **attrs: object) -> float:
    return node_microseconds(H200, op, make_attrs(attrs), operands)


def _composites() -> list[Probe]:
    floats = (DataType.FLOAT, DataType.FLOAT16)
    return [p for p in probes() if p.dtype in floats and get_operator(p.application()[0].op).composite and _is_typed(p)]


def _is_typed(probe: Probe) -> bool:
    """Whether the operator is one of the element type: some are of float32 alone."""
    term, types = probe.application()
    try:
        return bool(get_operator(term.op).types(term.attrs, types))
    except ShapeError:
        return False


def _parts(term: Term, types: Sequence[TensorType]) -> list[tuple[Term, list[TensorType]]]:
    record = get_operator(term.op)
    roots = record.decompose(term.attrs, types)
    known = infer_types(roots, {f"x{i}": type_ for i, type_ in enumerate(types)})
    found = []
    for part in walk(roots):
        if part.inputs and part.out == 0:
            beside = next((known[i].dtype for i in part.inputs if i.op != "Const" and known[i].dtype != DataType.BOOL), None)
            found.append((part, [TensorType(beside, ()) if i.op == "Const" and beside else known[i] for i in part.inputs]))
    return found


def test_a_composite_within_a_kernel_costs_its_products() -> None:
    """A kernel whose body is attention takes as long as its two products at least, 0.4 GFLOP each."""
    types = {name: parse_type("float[1,512,384]") for name in "qkv"}
    attrs = "given=(),mask_filter_value=-10000.0,num_heads=6,present=false,scale=1.0,unidirectional=false"
    kernel = lower("attention", types, [("y", parse_term(f"MultiHeadAttention[{attrs}](q, k, v)"))])
    cpu, products = DEVICES["cpu"], 2 * 2 * 6 * 512 * 512 * 64
    taken = node_microseconds(cpu, KERNEL, kernel_attrs(kernel), list(types.values()))
    assert cpu.microseconds(products, 0, DataType.FLOAT) <= taken <= 2 * cpu.microseconds(products, 0, DataType.FLOAT)


@pytest.mark.parametrize("device", ["cpu", "t4", "h200"])
def test_a_composite_is_never_dearer_than_its_parts(device: str) -> None:
    samples = _composites()
    assert len({p.sample for p in samples}) > 30
    for probe in samples:
        term, types = probe.application()
        together = node_microseconds(DEVICES[device], term.op, term.attrs, types)
        alone = [node_microseconds(DEVICES[device], part.op, part.attrs, inner) for part, inner in _parts(term, types)]
        assert 0 < together <= sum(alone) * (1 + 1e-9), probe
        if get_operator(term.op).runtime.inlined:  # onnxruntime has its parts, and no more
            assert together == pytest.approx(sum(alone)), probe
        elif device != "cpu" and sum(cost > 0 for cost in alone) > 3:
            assert together < 0.9 * sum(alone), probe


def test_attention_of_one_wide_head_is_no_dearer_than_its_products() -> None:
    operands = half(*["64,1,128,8192"] * 3)
    term = parse_term("Attention[scale=0.125](q, k, v)")
    assert price(term.op, operands, **dict(term.attrs)) <= sum(price(p.op, t, **dict(p.attrs)) for p, t in _parts(term, operands))


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "measured"),
    [(128, 768, 768, 6.2), (128, 768, 3072, 8.1), (128, 3072, 768, 9.0), (4096, 768, 768, 25.2), (4096, 768, 2304, 64.9)],
)
def test_a_gemm_with_a_bias_takes_about_what_was_measured(rows: int, inner: int, columns: int, measured: float) -> None:
    """The last two are sums of two kernels with their launches: the bias is written first, by one that divides for each entry."""
    operands = half(f"{rows},{inner}", f"{inner},{columns}", f"{columns}")
    attrs = {"alpha": 1.0, "beta": 1.0, "transA": False, "transB": False}
    assert price("Gemm", operands, **attrs) == pytest.approx(measured, rel=0.1)
    assert price("Gemm", operands, **attrs | {"beta": 0.0}) == pytest.approx(price("Gemm", operands[:2], **attrs), rel=1e-3)


@pytest.mark.parametrize(
    ("batch", "length", "measured"), [(1, 128, 6.3), (1, 1024, 14.5), (8, 512, 21.0), (16, 2048, 445.0), (16, 4096, 1728.0)]
)
def test_attention_takes_about_what_was_measured(batch: int, length: int, measured: float) -> None:
    """Flash kernels of 12 heads of 64; the score matrix is not written."""
    estimate = price("MultiHeadAttention", half(*[f"{batch},{length},768"] * 3), num_heads=12, scale=0.125)
    assert measured / 1.4 < estimate < measured * 1.4


def test_causal_attention_computes_the_tiles_that_its_mask_leaves() -> None:
    def saved(length: int, op: str = "MultiHeadAttention", mark: str = "unidirectional") -> float:
        operands = half(*[f"16,{length},768"] * 3)
        heads = {"num_heads": 12, "kv_num_heads": 12} if op == "Attention" else {"num_heads": 12}
        whole, part = (price(op, operands, scale=0.125, **heads, **{mark: causal}) for causal in (False, True))
        return 1 - part / whole

    assert saved(4096) == pytest.approx(0.5, abs=0.05) == saved(4096, "Attention", "is_causal")
    assert 0.1 < saved(512) < 0.4
    assert saved(128) == 0  # one tile is computed as a whole


def _bert_layer(length: int, hidden: int = 768) -> float:
    """As onnxruntime runs a layer of BERT that it has not fused: products, biases, heads, softmax, GELU, normalisations."""
    x, heads, inner = f"1,{length},{hidden}", f"1,12,{length},64", f"1,{length},{4 * hidden}"
    scores = f"1,12,{length},{length}"
    total = 4 * (price("MatMul", half(x, f"{hidden},{hidden}")) + price("Add", half(x, f"{hidden}")))
    total += 4 * price("Transpose", half(heads), perm=(1, 0, 2)) + price("Transpose", half(heads), perm=(1, 0))
    total += price("MatMul", half(heads, f"1,12,64,{length}")) + price("MatMul", half(scores, heads))
    total += 3 * price("Add", half(scores, f"1,1,1,{length}")) + price("Softmax", half(scores))
    total += price("MatMul", half(x, f"{hidden},{4 * hidden}")) + price("MatMul", half(inner, f"{4 * hidden},{hidden}"))
    total += price("Add", half(inner, f"{4 * hidden}")) + price("Gelu", half(inner)) + 3 * price("Add", half(x, x))
    return total + 2 * price("LayerNormalization", half(x, f"{hidden}", f"{hidden}"))


def test_a_layer_of_bert_takes_about_what_was_measured() -> None:
    """Twelve take 841 us in onnxruntime; products and everything else matter alike."""
    assert 841 / 12 / 1.35 < _bert_layer(128) < 841 / 12 * 1.35


def test_a_large_product_reaches_most_of_the_peak_and_a_small_one_little() -> None:
    large, small = (2 * n**3 / price("MatMul", half(f"{n},{n}", f"{n},{n}")) / 1e6 for n in (8192, 128))
    assert 650 < large < 850, "790 TFLOP/s was measured"
    assert small < 10


def test_a_product_with_one_row_takes_its_weights() -> None:
    """33 MB at 4.3 TB/s take 8 us."""
    assert 8 < price("MatMul", half("1,4096", "4096,4096")) < 16


def test_moving_is_charged() -> None:
    big = half("64,1024,1024")
    copy = price("Neg", big)
    assert price("Transpose", big, perm=(1, 0)) > 1.5 * copy
    assert price("Split", big, axis=-1, sizes=(512, 512)) == pytest.approx(copy)
    assert price("Concat", big * 2, axis=-1) == pytest.approx(2 * copy, rel=0.1)
    assert price("Gather", [*half("50000,1024"), parse_type("int64[1,128]")], axis=-2) < 4, "the rows taken, not the table"
    assert price("Slice", big, axes=(-1,), starts=(0,), ends=(8,), steps=(1,)) < 0.1 * copy


def test_a_reshape_is_charged_where_its_result_leaves_the_model() -> None:
    b = Builder()
    inner = b.op("Reshape", b.input("float16[64,1024]"), drop=2, shape=(1024, 64))
    outer = b.op("Reshape", b.op("Relu", inner), drop=2, shape=(64, 1024))
    graph = b.graph(outer)
    model = CostModel(ProfileStore(None, "there"), 17, {}, "cuda", float("-inf"), H200)
    prices = [model.estimate(graph, node) for node in graph.nodes()]
    assert prices[0] == 0 and prices[2] > 2


def test_channels_last_saves_the_conversions() -> None:
    attrs = {"dilations": (1, 1), "group": 1, "pads": (1, 1, 1, 1), "strides": (1, 1)}
    first = price("Conv", half("1,64,56,56", "64,64,3,3"), **attrs)
    last = price("NhwcConv", half("1,56,56,64", "64,3,3,64"), **attrs)
    assert last < first - 4


@pytest.mark.parametrize(("group", "kernels"), [(1, "64,32,4,4"), (4, "64,8,4,4")])
@pytest.mark.parametrize("device", ["h200", "cpu"])
def test_a_transposed_convolution_costs_the_products_that_it_counts(device: str, group: int, kernels: str) -> None:
    """The kernel's entries for each of the image, however many zeros stand between these."""
    attrs = {"dilations": (1, 1), "group": group, "output_padding": (0, 0), "pads": (1,) * 4, "strides": (2, 2)}
    types, record = half("1,64,56,56", kernels), get_operator("ConvTranspose")
    outputs = record.types(attrs, types)
    sizes = roofline.product_sizes("ConvTranspose", attrs, types, outputs)
    assert (
        sizes is not None and 2 * math.prod(sizes) == record.flops(attrs, types, outputs) == 2 * 64 * 56 * 56 * 32 // group * 16
    )
    times = [
        node_microseconds(DEVICES[device], "ConvTranspose", make_attrs({**attrs, "strides": (step, step)}), types)
        for step in (1, 4)
    ]
    assert DEVICES[device].microseconds(2 * math.prod(sizes), 0, DataType.FLOAT16) <= times[0] <= times[1]


LINES = [
    # wav2vec 2.0 and Whisper: image, kernels, group, stride, pads; microseconds that an H200 took for it, and for windows.
    ("1,768,49", "768,48,128", 16, 1, 64, 660, 33),
    ("1,1,16000", "512,1,10", 1, 5, 0, 33, 12),
    ("1,512,3199", "512,512,3", 1, 2, 0, 32, 20),
    ("1,512,799", "512,512,3", 1, 2, 0, 26, 10),
    ("1,512,199", "512,512,2", 1, 2, 0, 20, 7),
    ("1,80,3000", "512,80,3", 1, 1, 1, 19, 15),
    ("1,512,3000", "512,512,3", 1, 2, 1, 56, 27),
]


@pytest.mark.parametrize(("image", "kernels", "group", "stride", "pad", "conv", "windows"), LINES)
def test_a_convolution_over_a_line_and_its_windows_cost_about_what_they_took(
    image: str, kernels: str, group: int, stride: int, pad: int, conv: int, windows: int
) -> None:
    (batch, channels, length), (outputs, inner, size) = (tuple(map(int, shape.split(","))) for shape in (image, kernels))
    window = {"dilations": (1,), "strides": (stride,)}
    line = price("Conv", half(image, kernels), group=group, pads=(pad, pad), **window)
    long = length + 2 * pad
    places = (long - size) // stride + 1
    product = price("MatMul", half(f"{batch},{group},{places},{inner * size}", f"{group},{inner * size},{outputs // group}"))
    moved = price("Windows", half(f"{batch},{group},{long},{inner}"), axis=-2, kernel=(size,), **window)
    turned = [price("Transpose", half(f"{batch},{channels},{long}"), perm=(1, 0))] * (2 if group > 1 else 1)
    turned += [price("Transpose", half(f"{batch},{outputs},{places}"), perm=(1, 0))] * (2 if group > 1 else 1)
    turned += [price("Pad", half(image), begins=(pad,), ends=(pad,))] if pad else []
    assert 0.6 < line / conv < 1.25
    assert 0.7 < (product + moved + sum(turned)) / windows < 1.6


def test_a_depthwise_convolution_over_a_line_is_no_product() -> None:
    """Of one entry a window and column, windows are not its way."""
    window = {"dilations": (1,), "group": 512, "pads": (15, 15), "strides": (1,)}
    assert price("Conv", half("1,512,400", "512,1,31"), **window) < 10


def test_a_processor_computes_a_line_as_a_product() -> None:
    types = [parse_type("[1,512,799]"), parse_type("[512,512,3]")]
    attrs = make_attrs({"dilations": (1,), "group": 1, "pads": (0, 0), "strides": (2,)})
    product = node_microseconds(DEVICES["cpu"], "MatMul", (), [parse_type("[399,1536]"), parse_type("[1536,512]")])
    assert node_microseconds(DEVICES["cpu"], "Conv", attrs, types) == pytest.approx(product, rel=0.05)


def test_launches_are_charged() -> None:
    assert price("Relu", half("1")) == pytest.approx(H200.launch + H200.latency, rel=1e-3)


@pytest.mark.parametrize(
    ("channels", "image", "narrow", "wide"), [(128, 56, (32, 1780.0), (8, 1284.0)), (256, 28, (32, 1298.0), (16, 710.0))]
)
def test_narrow_groups_cost_a_processor_whole_blocks(
    channels: int, image: int, narrow: tuple[int, float], wide: tuple[int, float]
) -> None:
    """Ratios to what was measured of onnxruntime on one core, in microseconds (AVX-512)."""

    def conv(groups: int) -> float:
        types = [parse_type(f"[1,{channels},{image},{image}]"), parse_type(f"[{channels},{channels // groups},3,3]")]
        attrs = {"dilations": (1, 1), "group": groups, "pads": (1, 1, 1, 1), "strides": (1, 1)}
        return node_microseconds(DEVICES["cpu"], "Conv", make_attrs(attrs), types)

    assert conv(narrow[0]) / conv(wide[0]) == pytest.approx(narrow[1] / wide[1], rel=0.25)
    assert conv(wide[0] // 2) > 1.7 * conv(wide[0]), "beyond a block there are only more zeros"


def test_the_same_node_is_priced_once_of_each_device() -> None:
    """Layers ask the same, and each opinion of prices; a device of other peaks is another one."""
    operands = half("512,512", "512,512")
    first, asked = price("MatMul", operands), roofline._node_microseconds.cache_info()
    assert price("MatMul", operands) == first and roofline._node_microseconds.cache_info().misses == asked.misses
    slow = replace(H200, peaks={dtype: peak / 1000 for dtype, peak in H200.peaks.items()})
    assert node_microseconds(slow, "MatMul", make_attrs({}), operands) > 10 * first
