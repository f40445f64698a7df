"""onnxruntime's own fused operators: products, convolutions, normalisations and activations (domain ``com.microsoft``).

Each is defined by its decomposition. Where a name of onnxruntime's is also ONNX's, the record's begins with ``Ort``. For which
element types a provider has a kernel stands in ``support.json``: of the others it casts to float and back, or refuses the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mugraph.ops.base import Decompose, RuntimeFacts, applied, floating, get_operator, operands
from mugraph.ops.composite import NARROW, RUNTIME_DOMAIN, Check, contract, define, expect_shape, plain_inputs
from mugraph.ops.convolution import read_conv, write_conv
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Read,
    Reading,
    Write,
    attributes_of,
    rank_of,
    single_output,
)
from mugraph.ops.traits import DegreeBound, Entrywise, ImageRole, ProductKind, RowRole, Traits
from mugraph.terms.shape import DataType, ShapeError, TensorType, normalize_axis
from mugraph.terms.term import Term, const

FLOAT, HALF, DOUBLE = DataType.FLOAT, DataType.FLOAT16, DataType.DOUBLE
WIDE = NARROW | {DOUBLE}


def _form(op_type: str, count: int, attributes: Mapping[str, Any] | None = None, **more: Any) -> OnnxForm:
    return OnnxForm(op_type, tuple(range(count)), attributes or {}, RUNTIME_DOMAIN, **more)


# Activations that onnxruntime fuses into a product or a convolution

_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "Relu": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "Sigmoid": (),
    "Tanh": (),
    "Softplus": (),
    "Softsign": (),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "Clip": ("min", "max"),
    "": (),
}
"""Name to the attributes that its parameters are, in onnxruntime's order."""
_OF_GEMM = frozenset({"Relu", "LeakyRelu", "Elu", "Sigmoid", "Tanh", "Softplus", "Softsign", "HardSigmoid"})
_OF_CONV = frozenset({"Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Clip", ""})


def _activated(attrs: AttrMap, x: Term) -> Term:
    name = attrs["activation"]
    if not name:
        return x
    return applied(name, x, **dict(zip(_ACTIVATIONS[name], attrs["activation_params"], strict=True)))


def _check_activation(attrs: AttrMap, admitted: frozenset[str]) -> None:
    name, parameters = attrs["activation"], attrs["activation_params"]
    if name not in admitted or len(parameters) != len(_ACTIVATIONS[name]):
        raise ShapeError(f"the activation {name} with the parameters {parameters}")


def _read_activation(node: ForeignNode, name: str, parameters: Sequence[float], admitted: frozenset[str]) -> dict[str, Any]:
    if name not in admitted or len(parameters) != len(_ACTIVATIONS[name]):
        raise NotUnderstood(f"{node.op_type} with the activation '{name}' and {len(parameters)} parameters")
    return {"activation": name, "activation_params": tuple(map(float, parameters))}


_FUSED = RuntimeFacts(fuses=True)

# Products


def _swapped(x: Term, batch: int, last: bool) -> Term:
    """The operand of a FusedMatMul: of its last ``batch`` axes the first goes before the last one; the last two change."""
    if batch:
        x = applied("Transpose", x, perm=(*range(1, batch - 1), 0, batch - 1))
    return applied("Transpose", x, perm=(1, 0)) if last else x


def _fused_matmul(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    x, y = operands(2)
    product = applied(
        "MatMul", _swapped(x, attrs["transBatchA"], attrs["transA"]), _swapped(y, attrs["transBatchB"], attrs["transB"])
    )
    return (product if attrs["alpha"] == 1 else applied("Mul", product, const(attrs["alpha"])),)


def _check_fused_matmul(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    """Beside a vector onnxruntime 1.31 transposes nothing, and says so of batches only: of others it gives wrong numbers."""
    floating(types)
    if min(t.rank for t in types) < 2 and any(value for name, value in attrs.items() if name.startswith("trans")):
        raise ShapeError(f"FusedMatMul of {types[0]} and {types[1]}, transposed")
    for type_, side in zip(types, "AB", strict=True):
        batch = attrs[f"transBatch{side}"]
        if (batch and (batch < 3 or batch != type_.rank)) or (attrs[f"trans{side}"] and type_.rank < 2):
            raise ShapeError(f"FusedMatMul of {type_}, transposed")


def _read_fused_matmul(node: ForeignNode) -> Reading:
    attributes = attributes_of(node, alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0)
    attrs: dict[str, Any] = {"alpha": float(attributes["alpha"])}
    for index, side in enumerate("AB"):
        attrs[f"trans{side}"] = bool(attributes[f"trans{side}"])
        attrs[f"transBatch{side}"] = rank_of(node, index) if attributes[f"transBatch{side}"] else 0
    return Reading(attrs, (0, 1))


def _write_fused_matmul(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    swaps = {name: 1 for name in ("transA", "transB", "transBatchA", "transBatchB") if attrs[name]}
    return _form("FusedMatMul", 2, {"alpha": attrs["alpha"], **swaps})


define(
    "FusedMatMul",
    (2, 2),
    _fused_matmul,
    check=_check_fused_matmul,
    read=_read_fused_matmul,
    write=_write_fused_matmul,
    contract=contract("FusedMatMul", "alpha transA transB transBatchA transBatchB", 2, WIDE),
    traits=Traits(product=ProductKind.MATRIX, degree=DegreeBound.MULTILINEAR, one_dtype=True, accumulates=True),
    runtime=_FUSED,
    samples=(
        "FusedMatMul[alpha=0.5,transB=true](x, y) | x:[2,32,64] y:[2,48,64]",
        "FusedMatMul[transA=true](x, y) | x:[64,32] y:[64,48]",
    ),
    defaults={"alpha": 1.0, "transA": False, "transB": False, "transBatchA": 0, "transBatchB": 0},
)

_GEMM = ("alpha", "beta", "transA", "transB")


def _fused_gemm(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    return (_activated(attrs, applied("Gemm", *operands(len(types)), **{name: attrs[name] for name in _GEMM})),)


def _check_fused_gemm(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    floating(types)
    _check_activation(attrs, _OF_GEMM)


def _read_fused_gemm(node: ForeignNode) -> Reading:
    attributes = attributes_of(
        node,
        alpha=1.0,
        beta=1.0,
        transA=0,
        transB=0,
        activation="",
        activation_alpha=None,
        activation_beta=None,
        activation_gamma=None,
    )
    parameters = [attributes[f"activation_{name}"] for name in ("alpha", "beta", "gamma")]
    given_parameters = [p for p in parameters if p is not None]
    attrs = _read_activation(node, attributes["activation"], given_parameters, _OF_GEMM)
    inputs = plain_inputs(node, 3)
    return Reading(
        {
            **attrs,
            "alpha": float(attributes["alpha"]),
            "beta": float(attributes["beta"]) if len(inputs) == 3 else 1.0,
            "transA": bool(attributes["transA"]),
            "transB": bool(attributes["transB"]),
        },
        inputs,
    )


def _write_fused_gemm(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    parameters = zip(("activation_alpha", "activation_beta"), attrs["activation_params"], strict=False)
    numbers = {name: int(attrs[name]) if name.startswith("trans") else attrs[name] for name in _GEMM}
    return _form("FusedGemm", len(types), {**numbers, "activation": attrs["activation"], **dict(parameters)})


define(
    "FusedGemm",
    (2, 3),
    _fused_gemm,
    check=_check_fused_gemm,
    read=_read_fused_gemm,
    write=_write_fused_gemm,
    contract=contract(
        "FusedGemm",
        "alpha beta transA transB activation activation_alpha activation_beta activation_gamma",
        3,
        frozenset({FLOAT, HALF, DOUBLE}),
    ),
    traits=Traits(product=ProductKind.MATRIX, one_dtype=True, piecewise=True, accumulates=True),
    samples=("FusedGemm(x, y, b) | x:[32,64] y:[64,48] b:[48]",),
    defaults={"alpha": 1.0, "beta": 1.0, "transA": False, "transB": False, "activation": "Relu", "activation_params": ()},
)


# Convolution

_CONV = ("dilations", "group", "pads", "strides")


def _fused_conv(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    """The activation of the convolution plus, last among the operands, a residual."""
    inputs = operands(len(types))
    residual = [inputs.pop()] if attrs["residual"] else []
    result = applied("Conv", *inputs, **{name: attrs[name] for name in _CONV})
    for term in residual:
        result = applied("Add", result, term)
    return (_activated(attrs, result),)


def _check_fused_conv(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    floating(types)
    _check_activation(attrs, _OF_CONV)
    if len(types) < 2 + attrs["residual"]:
        raise ShapeError("FusedConv without its residual")
    if attrs["residual"]:
        conv = {name: attrs[name] for name in _CONV}
        (result,) = get_operator("Conv").types(conv, types[:-1])
        expect_shape("FusedConv with a residual", types[-1], result.shape, result.dtype)


def _read_fused_conv(node: ForeignNode) -> Reading:
    """Attributes that are TASO's only fused convolution's (Relu, no residual) are left out."""
    window = read_conv(node, ("activation", "activation_params"))
    attributes = node.attributes
    attrs = _read_activation(node, attributes.get("activation", ""), attributes.get("activation_params", ()), _OF_CONV)
    inputs = plain_inputs(node, 4)
    if 3 in inputs:
        attrs["residual"] = True
    kept = {name: value for name, value in attrs.items() if value != _FUSED_CONV[name]}
    return Reading({**window.attrs, **kept}, inputs)


def _write_fused_conv(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    form = write_conv(attrs, types, opset)
    activation = {name: attrs[name] for name in ("activation", "activation_params") if attrs[name]}
    inputs: list[int | None] = list(range(len(types)))
    if attrs["residual"] and len(types) == 3:
        inputs.insert(2, None)
    return replace(
        form, op_type="FusedConv", domain=RUNTIME_DOMAIN, inputs=tuple(inputs), attributes={**form.attributes, **activation}
    )


_FUSED_CONV = {"group": 1, "activation": "Relu", "activation_params": (), "residual": False}
define(
    "FusedConv",
    (2, 4),
    _fused_conv,
    check=_check_fused_conv,
    read=_read_fused_conv,
    write=_write_fused_conv,
    contract=contract(
        "FusedConv",
        "activation activation_params auto_pad dilations group kernel_shape pads strides",
        4,
        frozenset({FLOAT, HALF, DOUBLE}),
    ),
    traits=Traits(product=ProductKind.CONVOLUTION, image=ImageRole.WINDOW, one_dtype=True, piecewise=True, accumulates=True),
    samples=(
        "FusedConv[dilations=(1,1),pads=(1,1,1,1),strides=(1,1)](x, w, b) | x:[1,8,14,14] w:[16,8,3,3] b:[16]",
        "FusedConv[dilations=(1,1),pads=(1,1,1,1),residual=true,strides=(1,1)](x, w, b, z) "
        "| x:[1,8,14,14] w:[16,8,3,3] b:[16] z:[1,16,14,14]",
    ),
    defaults=_FUSED_CONV,
)


# Normalisation

_ROWS = Traits(one_dtype=True, keeps_shape=True, accumulates=True)


def _simplified(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    return (applied("RMSNormalization", *operands(2), axis=attrs["axis"], epsilon=attrs["epsilon"]),)


def _read_simplified(node: ForeignNode) -> Reading:
    attributes = attributes_of(node, axis=-1, epsilon=1e-5, stash_type=1)
    single_output(node)
    if attributes["stash_type"] != 1:
        raise NotUnderstood(f"{node.op_type} with stash_type {attributes['stash_type']}")
    return Reading(
        {"axis": normalize_axis(int(attributes["axis"]), rank_of(node)), "epsilon": float(attributes["epsilon"])}, (0, 1)
    )


# onnxruntime keeps this one in ONNX's own domain, where ONNX has none of that name; since opset 23 it is RMSNormalization.
define(
    "SimplifiedLayerNormalization",
    (2, 2),
    _simplified,
    read=_read_simplified,
    write=lambda attrs, types, opset: OnnxForm("SimplifiedLayerNormalization", (0, 1), {**attrs, "stash_type": 1}),
    contract=contract("SimplifiedLayerNormalization", "axis epsilon stash_type", 2, WIDE, domain=""),
    traits=replace(_ROWS, rows=RowRole.NORMALISATION),
    runtime=_FUSED,
    samples=("SimplifiedLayerNormalization(x, g) | x:[2,16,64] g:[64]",),
    defaults={"axis": -1, "epsilon": 1e-5},
)


def _skip_sum(attrs: AttrMap, inputs: list[Term]) -> Term:
    """The sum of input and skip and, where there is one, of the bias, which is the last operand."""
    total = applied("Add", inputs[0], inputs[1])
    return applied("Add", total, inputs[-1]) if attrs["bias"] else total


def _skip_layer(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    inputs = operands(len(types))
    total = _skip_sum(attrs, inputs)
    parameters = inputs[2 : len(inputs) - attrs["bias"]]
    normal = applied("LayerNormalization", total, *parameters, axis=-1, epsilon=attrs["epsilon"])
    return (normal, total) if attrs["sum"] else (normal,)


def _skip_simplified(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    inputs = operands(len(types))
    total = _skip_sum(attrs, inputs)
    normal = applied("RMSNormalization", total, inputs[2], axis=-1, epsilon=attrs["epsilon"])
    return (normal, total) if attrs["sum"] else (normal,)


def _check_skip(parameters: int) -> Check:
    def check(attrs: AttrMap, types: Sequence[TensorType]) -> None:
        floating(types)
        x = types[0]
        if x.rank not in (2, 3) or not 3 <= len(types) - attrs["bias"] <= parameters:
            raise ShapeError(f"a skip connection of {x} with {len(types)} operands")
        expect_shape("a skip connection", types[1], x.shape, x.dtype)
        for parameter in types[2:]:
            expect_shape("a skip connection", parameter, x.shape[-1:], x.dtype)

    return check


def _read_skip(parameters: int) -> Read:
    """``parameters`` is how many inputs stand before the bias."""

    def read(node: ForeignNode) -> Reading:
        attributes = attributes_of(node, epsilon=1e-12)
        inputs = plain_inputs(node, parameters + 1)
        attrs = {"epsilon": float(attributes["epsilon"]), "bias": parameters in inputs, "sum": node.output_count > 1}
        return Reading(attrs, inputs, (0, 3) if attrs["sum"] else (0,))

    return read


def _write_skip(op_type: str, parameters: int) -> Write:
    def write(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
        inputs: list[int | None] = list(range(len(types)))
        if attrs["bias"]:
            inputs[-1:-1] = [None] * (parameters + 1 - len(types))
        outputs = (0, 3) if attrs["sum"] else (0,)
        return OnnxForm(op_type, tuple(inputs), {"epsilon": attrs["epsilon"]}, RUNTIME_DOMAIN, outputs)

    return write


_SKIP = "| x:[2,16,64] s:[2,16,64] g:[64]"

for _name, _decompose, _parameters, _samples in (
    (
        "SkipLayerNormalization",
        _skip_layer,
        4,
        (
            f"SkipLayerNormalization(x, s, g, b) {_SKIP} b:[64]",
            f"SkipLayerNormalization[bias=true,sum=true](x, s, g, b, c) {_SKIP} b:[64] c:[64]",
        ),
    ),
    (
        "SkipSimplifiedLayerNormalization",
        _skip_simplified,
        3,
        (
            f"SkipSimplifiedLayerNormalization(x, s, g) {_SKIP}",
            f"SkipSimplifiedLayerNormalization[sum=true](x, s, g) {_SKIP}",
        ),
    ),
):
    define(
        _name,
        (3, _parameters + 1),
        _decompose,
        check=_check_skip(_parameters),
        read=_read_skip(_parameters),
        write=_write_skip(_name, _parameters),
        contract=contract(_name, "epsilon", _parameters + 1),
        vectors=lambda attrs, count: range(2, count),
        traits=_ROWS,
        runtime=_FUSED,
        samples=_samples,
        defaults={"epsilon": 1e-12, "bias": False, "sum": False},
    )


def _embed(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    """Rows of the words, of the positions from the first on and, with segments, of theirs; then normalised.

    The second output counts the entries of each mask, and is zero without masks. onnxruntime refuses a node without it.
    """
    words, positions, gamma, beta, ids, *segments = operands(len(types))
    batch, length = types[4].shape
    places = applied("Slice", positions, axes=(-2,), starts=(0,), ends=(length,), steps=(1,))
    total = applied("Add", applied("Gather", words, ids, axis=-2), places)
    if segments:
        total = applied("Add", total, applied("Gather", *segments, axis=-2))
    normal = applied("LayerNormalization", total, gamma, beta, axis=-1, epsilon=attrs["epsilon"])
    unmasked = applied("ConstantOfShape", dtype=DataType.INT32, shape=(batch,), value=0.0)
    return (normal, unmasked, total) if attrs["sum"] else (normal, unmasked)


def _check_embed(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    words, ids = types[0], types[4]
    floating(types[:4])
    if len(types) == 6 or any(t.rank != 2 for t in types[5:]) or words.rank != 2 or ids.rank != 2:
        raise ShapeError(f"EmbedLayerNormalization of {ids} with {words}")
    for table in (types[1], *types[5:6]):
        expect_shape("EmbedLayerNormalization", table, (*table.shape[:1], words.shape[1]), words.dtype)
    for parameter in types[2:4]:
        expect_shape("EmbedLayerNormalization", parameter, words.shape[1:], words.dtype)
    for index in (ids, *types[6:]):
        expect_shape("EmbedLayerNormalization", index, ids.shape, DataType.INT32)


def _read_embed(node: ForeignNode) -> Reading:
    """ONNX inputs: ids, segment ids, words, positions, segments, gamma, beta; then masks and positions by number."""
    attributes = attributes_of(node, epsilon=1e-12, mask_index_type=0)
    if node.present(7) or node.present(8) or node.present(1) != node.present(4):
        raise NotUnderstood("EmbedLayerNormalization with a mask, given positions or half of its segments")
    attrs = {"epsilon": float(attributes["epsilon"]), "sum": node.output_count > 2}
    inputs = (2, 3, 5, 6, 0, *((4, 1) if node.present(1) else ()))
    return Reading(attrs, inputs)


def _write_embed(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    segments = (5, 6) if len(types) == 7 else (None, None)
    inputs = (4, segments[1], 0, 1, segments[0], 2, 3)
    return OnnxForm("EmbedLayerNormalization", inputs, {"epsilon": attrs["epsilon"]}, RUNTIME_DOMAIN)


define(
    "EmbedLayerNormalization",
    (5, 7),
    _embed,
    check=_check_embed,
    read=_read_embed,
    write=_write_embed,
    contract=contract("EmbedLayerNormalization", "epsilon", 7, NARROW - {DataType.BFLOAT16}, int32=[0, 1]),
    ranks=lambda attrs, count: [2, 2, 1, 1, 2, 2, 2][:count],
    traits=Traits(accumulates=True),
    runtime=RuntimeFacts(fuses=True, kernels=2),
    samples=(
        "EmbedLayerNormalization(w, p, g, b, i, t, s) | w:[8,64] p:[16,64] g:[64] b:[64] i:int32[2,16] t:[2,64] s:int32[2,16]",
    ),
    defaults={"epsilon": 1e-12, "sum": False},
)


# Activations with a bias, and two that ONNX had late or not at all


def _plain(attrs: AttrMap, types: Sequence[TensorType]) -> Term:
    inputs = operands(len(types))
    return inputs[0] if len(inputs) == 1 else applied("Add", *inputs)


def _check_bias(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    floating(types)
    if len(types) == 2:
        if not types[0].rank:
            raise ShapeError("a bias of a scalar")
        expect_shape("a bias", types[1], types[0].shape[-1:], types[0].dtype)


def _read_given(most: int, **defaults: float) -> Read:
    def read(node: ForeignNode) -> Reading:
        attributes = attributes_of(node, **defaults)
        return Reading({name: float(attributes[name]) for name in defaults}, plain_inputs(node, most))

    return read


def _gelu(approximate: str) -> Decompose:
    return lambda attrs, types: (applied("Gelu", _plain(attrs, types), approximate=approximate),)


def _quick_gelu(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    (x,) = operands(1)
    inner = x if attrs["alpha"] == 1 else applied("Mul", x, const(attrs["alpha"]))
    return (applied("Mul", x, applied("Sigmoid", inner)),)


def _write_activation(op_type: str, takes_bias: bool) -> Write:
    def write(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
        if takes_bias and not types[0].rank:  # its kernel wants an axis for a bias, also without one
            raise NotExpressible(f"{op_type} of a scalar")
        return _form(op_type, len(types), dict(attrs))

    return write


def _bias_activation(name: str, arity: tuple[int, int], decompose: Decompose, **defaults: float) -> None:
    op_type = name.removeprefix("Ort")
    define(
        name,
        arity,
        decompose,
        check=_check_bias,
        read=_read_given(arity[1], **defaults),
        write=_write_activation(op_type, takes_bias=arity[1] > 1),
        contract=contract(op_type, " ".join(defaults), arity[1], WIDE),
        vectors=lambda attrs, count: range(1, count),
        traits=Traits(
            entrywise=Entrywise.FUNCTION if arity[1] == 1 else None, one_dtype=True, keeps_shape=arity[1] > 1, slow=arity[1] == 1
        ),
        runtime=_FUSED,
        samples=(f"{name}(x) | x:[4,32]",) * (arity[0] == 1) + (f"{name}(x, b) | x:[4,32] b:[32]",) * (arity[1] == 2),
        defaults=defaults,
    )


_bias_activation("OrtGelu", (1, 1), _gelu("none"))
_bias_activation("BiasGelu", (2, 2), _gelu("none"))
_bias_activation("FastGelu", (1, 2), _gelu("tanh"))
_bias_activation("QuickGelu", (1, 1), _quick_gelu, alpha=1.7020000219345093)
