"""What is proved: weights that a tool merged, moved or scaled, and values that are read back from what follows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from modeldiff.compare import Equality, ModelComparison, compare_models
from modeldiff.limits import RunLimit
from modeldiff.sides import ComparedModel
from modeldiff.weights import ComposedTensor, Nearby, WeightOrigins
from mugraph.onnx import load
from tests.support.compared import text_of, written
from tools.fuzz.diffs import drawn

Arrays = dict[str, np.ndarray]


def compared(tmp_path: Path, before: tuple[str, Arrays], after: tuple[str, Arrays]) -> ModelComparison:
    paths = [written(tmp_path / f"{n}.onnx", text, **tensors) for n, (text, tensors) in enumerate((before, after))]
    return compare_models(*paths)


def changed(array: np.ndarray) -> np.ndarray:
    """A tensor of which one entry is wrong."""
    wrong = array.copy()
    wrong.flat[-1] += np.float32(0.1)
    return wrong


def assert_proved_and_not_of_wrong(tmp_path: Path, before: tuple[str, Arrays], after: tuple[str, Arrays], *names: str) -> None:
    """What is proved is told as different where an entry of any of the tensors named is wrong."""
    comparison = compared(tmp_path, before, after)
    assert comparison.verdict is Equality.PROVED, text_of(comparison)
    assert any(known.rule is not None for region in comparison.regions for _, known in region.claims)
    text, tensors = after
    for name in names:
        wrong = compared(tmp_path, before, (text, {**tensors, name: changed(tensors[name])}))
        assert wrong.verdict is Equality.DIFFERENT, name


HEADS = "(float[2,5,16] x) => (float[2,5,16] a, float[2,5,16] b, float[2,5,16] c)"
THREE = {name: drawn(16, 16, seed=place) for place, name in enumerate("qkv")}


def test_products_that_were_merged_are_proved(tmp_path: Path) -> None:
    before = f"{HEADS} {{ a = MatMul(x, q) b = MatMul(x, k) c = MatMul(x, v) }}"
    after = f"{HEADS} {{ m = MatMul(x, w) a, b, c = Split<axis = -1>(m, s) }}"
    sizes = {"s": np.asarray([16, 16, 16])}
    merged = {"w": np.concatenate(list(THREE.values()), axis=1), **sizes}
    assert_proved_and_not_of_wrong(tmp_path, (before, THREE), (after, merged), "w")
    exchanged = {"w": np.concatenate([THREE[name] for name in "qvk"], axis=1), **sizes}
    assert compared(tmp_path, (before, THREE), (after, exchanged)).verdict is Equality.DIFFERENT


def test_a_report_says_what_a_merged_weight_is_made_of(tmp_path: Path) -> None:
    before = f"{HEADS} {{ a = MatMul(x, q) b = MatMul(x, k) c = MatMul(x, v) }}"
    after = f"{HEADS} {{ m = MatMul(x, w) a, b, c = Split<axis = -1>(m, s) }}"
    merged = {"w": np.concatenate(list(THREE.values()), axis=1), "s": np.asarray([16, 16, 16])}
    lines = text_of(compared(tmp_path, (before, THREE), (after, merged)))
    assert "Concat[axis=-1](x1, x2, x3)" in lines and "tensors are computed of those before: the same numbers" in lines


def test_an_attention_of_packed_weights_is_proved(tmp_path: Path) -> None:
    ends = "(float[2,5,16] x) => (float[2,5,16] y)"
    parts = "".join(
        f"p{n} = MatMul(x, {n}) l{n} = Add(p{n}, {n}b) r{n} = Reshape(l{n}, heads) t{n} = Transpose<perm = [0,2,1,3]>(r{n}) "
        for n in "qkv"
    )
    before = f"""{ends} {{ {parts} u = Transpose<perm = [0,1,3,2]>(tk) s = MatMul(tq, u) d = Mul(s, third) o = Softmax(d)
        h = MatMul(o, tv) g = Transpose<perm = [0,2,1,3]>(h) y = Reshape(g, whole) }}"""
    after = f"{ends} {{ y = com.microsoft.Attention<num_heads = 2, scale = 0.25>(x, w, bias) }}"
    biases = {f"{name}b": drawn(16, seed=place) for place, name in enumerate("qkv")}
    shapes = {"heads": np.asarray([0, 0, 2, 8]), "whole": np.asarray([0, 0, 16]), "third": np.float32(0.25)}
    packed = {"w": np.concatenate(list(THREE.values()), axis=1), "bias": np.concatenate(list(biases.values()))}
    assert_proved_and_not_of_wrong(tmp_path, (before, {**THREE, **biases, **shapes}), (after, packed), "w", "bias")


def test_transposed_weights_of_a_product_over_flattened_rows_are_proved(tmp_path: Path) -> None:
    ends = "(float[2,3,4,16] x) => (float[2,3,4,8] y)"
    weights, biases = drawn(16, 8), drawn(8)
    before = f"{ends} {{ p = MatMul(x, w) y = Add(p, b) }}", {"w": weights, "b": biases}
    text = f"{ends} {{ r = Reshape(x, rows) p = Gemm<transB = 1>(r, t, b) y = Reshape(p, back) }}"
    shapes = {"rows": np.asarray([24, 16]), "back": np.asarray([2, 3, 4, 8])}
    tensors = {"t": np.ascontiguousarray(weights.T), "b": biases, **shapes}
    assert_proved_and_not_of_wrong(tmp_path, before, (text, tensors), "t")


def test_a_factor_that_went_into_weights_is_proved(tmp_path: Path) -> None:
    ends = "(float[3,16] x) => (float[3,8] y)"
    weights, biases, factors = drawn(16, 8), drawn(8), drawn(8, seed=1)
    text = f"{ends} {{ p = MatMul(x, w) l = Add(p, b) y = Mul(l, f) }}"
    after = f"{ends} {{ p = MatMul(x, w) y = Add(p, b) }}", {"w": weights * factors, "b": biases * factors}
    assert_proved_and_not_of_wrong(tmp_path, (text, {"w": weights, "b": biases, "f": factors}), after, "w", "b")


ADAPTED = "(float[2,4,16] x) => (float[2,4,16] y)"
LOW = {"a": drawn(16, 4), "b": drawn(4, 16, seed=1)}


def test_an_adapter_that_was_merged_into_a_weight_is_proved(tmp_path: Path) -> None:
    before = f"{ADAPTED} {{ p = MatMul(x, q) d = MatMul(x, a) u = MatMul(d, b) s = Mul(u, half) y = Add(p, s) }}"
    tensors = {**LOW, "q": THREE["q"], "half": np.float32(0.5)}
    after, merged = f"{ADAPTED} {{ y = MatMul(x, w) }}", THREE["q"] + LOW["a"] @ LOW["b"] * np.float32(0.5)
    comparison = compared(tmp_path, (before, tensors), (after, {"w": merged}))
    assert comparison.verdict is Equality.PROVED, text_of(comparison)
    assert "MatMul(x0, Add(x1, Mul(MatMul(x2, x3), 0.5)))" in text_of(comparison)
    assert "equal within the rounding of their type" in text_of(comparison)
    turned = f"{ADAPTED} {{ r = Reshape(x, rows) p = Gemm<transB = 1>(r, w) y = Reshape(p, back) }}"
    shapes = {"rows": np.asarray([8, 16]), "back": np.asarray([2, 4, 16])}
    comparison = compared(tmp_path, (before, tensors), (turned, {"w": np.ascontiguousarray(merged.T), **shapes}))
    assert comparison.verdict is Equality.PROVED, text_of(comparison)
    wrong = merged.copy()
    wrong[3, 5] += np.float32(1e-4)
    for other in (wrong, merged.T, THREE["q"] + LOW["a"] @ LOW["b"]):
        assert compared(tmp_path, (before, tensors), (after, {"w": np.ascontiguousarray(other)})).verdict is Equality.DIFFERENT


def test_an_adapter_of_one_of_several_weights_side_by_side_is_proved(tmp_path: Path) -> None:
    before = (
        f"{HEADS} {{ p = MatMul(x, q) d = MatMul(x, low) u = MatMul(d, high) a = Add(p, u) b = MatMul(x, k) c = MatMul(x, v) }}"
    )
    adapter = {"low": LOW["a"], "high": LOW["b"]}
    parts = [THREE["q"] + LOW["a"] @ LOW["b"], THREE["k"], THREE["v"]]
    after = {"w": np.concatenate(parts, axis=1), "s": np.asarray([16, 16, 16])}
    text = f"{HEADS} {{ m = MatMul(x, w) a, b, c = Split<axis = -1>(m, s) }}"
    assert_proved_and_not_of_wrong(tmp_path, (before, {**THREE, **adapter}), (text, after), "w")


def test_no_tolerance_makes_a_weight_another(tmp_path: Path) -> None:
    """Weights that differ by more than rounding are equal within a wide tolerance, and nothing is proved of them."""
    before = f"{HEADS} {{ a = MatMul(x, q) b = MatMul(x, k) c = MatMul(x, v) }}"
    after = f"{HEADS} {{ m = MatMul(x, w) a, b, c = Split<axis = -1>(m, s) }}"
    wide = np.concatenate(list(THREE.values()), axis=1) * np.float32(1.0001)
    paths = [
        written(tmp_path / "a.onnx", before, **THREE),
        written(tmp_path / "b.onnx", after, w=wide, s=np.asarray([16, 16, 16])),
    ]
    assert compare_models(*paths, tolerance=0.01).verdict is Equality.TESTED


@pytest.mark.parametrize("hides", [0.0, -1.0])
def test_an_addend_of_zeros_may_be_dropped_and_no_other(hides: float, tmp_path: Path) -> None:
    ends = "(float[3,4] x) => (float[3,4] y)"
    addend = np.zeros((3, 4), np.float32)
    addend[1, 2] = hides
    before = f"{ends} {{ z = Transpose<perm = [1,0]>(f) s = Add(x, z) y = Softmax(s) }}", {"f": np.ascontiguousarray(addend.T)}
    comparison = compared(tmp_path, before, (f"{ends} {{ y = Softmax(x) }}", {}))
    assert comparison.verdict is (Equality.DIFFERENT if hides else Equality.PROVED), text_of(comparison)


def test_a_value_that_what_follows_it_gives_back_is_proved(tmp_path: Path) -> None:
    """B computes the reshaped tensor by another product, and from that the one before it, which is an output."""
    ends = "(float[2,3,16] x) => (float[2,3,2,4] v, float[2,3,8] r)"
    weights = drawn(16, 8)
    before = f"{ends} {{ p = MatMul(x, w) r = Relu(p) v = Reshape(r, heads) }}"
    after = f"{ends} {{ p = MatMul(x, w) h = Reshape(p, heads) v = Relu(h) r = Reshape(v, whole) }}"
    shapes = {"heads": np.asarray([2, 3, 2, 4]), "whole": np.asarray([2, 3, 8])}
    comparison = compared(tmp_path, (before, {"w": weights, **shapes}), (after, {"w": weights, **shapes}))
    assert comparison.verdict is Equality.PROVED, text_of(comparison)


def test_numbers_of_a_definition_that_a_model_rounds_are_proved(tmp_path: Path) -> None:
    before = """(float[4,8] x) => (float[4,8] y) { c = Pow(x, three) s = Mul(c, third) i = Add(x, s) m = Mul(i, root)
        t = Tanh(m) p = Add(t, one) h = Mul(x, half) y = Mul(h, p) }"""
    after = "(float[4,8] x) => (float[4,8] y) { y = com.microsoft.FastGelu(x) }"
    numbers = {"three": 3.0, "third": 0.044715, "root": np.sqrt(2 / np.pi), "one": 1.0, "half": 0.5}
    tensors = {name: np.asarray(number, np.float32) for name, number in numbers.items()}
    assert compared(tmp_path, (before, tensors), (after, {})).verdict is Equality.PROVED
    near = {**tensors, "root": np.nextafter(tensors["root"], np.float32(1))}  # equal in float32, and no number of a Gelu
    assert compared(tmp_path, (before, near), (after, {})).verdict is Equality.TESTED


def test_a_division_by_what_a_definition_multiplies_by_is_proved(tmp_path: Path) -> None:
    before = "(float[4,8] x) => (float[4,8] y) { d = Div(x, root) e = Erf(d) p = Add(e, one) m = Mul(x, p) y = Mul(m, half) }"
    after = "(float[4,8] x) => (float[4,8] y) { y = com.microsoft.Gelu(x) }"
    numbers = {"root": np.float32(np.sqrt(2)), "one": np.float32(1), "half": np.float32(0.5)}
    comparison = compared(tmp_path, (before, numbers), (after, {}))
    assert comparison.verdict is Equality.PROVED, text_of(comparison)
    near = {**numbers, "root": np.nextafter(numbers["root"], np.float32(2))}
    assert compared(tmp_path, (before, near), (after, {})).verdict is Equality.TESTED


def test_factors_that_were_split_between_operands_are_proved(tmp_path: Path) -> None:
    ends = "(float[3,4,8] x, float[3,8,4] z) => (float[3,4,4] y)"
    before = f"{ends} {{ a = Mul(x, r) b = Mul(z, r) y = MatMul(a, b) }}", {"r": np.float32(8**-0.25)}
    after = f"{ends} {{ y = com.microsoft.FusedMatMul<alpha = 0.35355338454246521>(x, z) }}", {}
    assert compared(tmp_path, before, after).verdict is Equality.PROVED
    wrong = after[0].replace("0.353553", "0.353653"), {}
    assert compared(tmp_path, before, wrong).verdict is Equality.DIFFERENT


@pytest.mark.parametrize("read", [False, True])
def test_sums_of_a_skip_connection_are_proved_though_means_have_names(read: bool, tmp_path: Path) -> None:
    outputs = "float[2,3,16] y, float[2,3,16] s" + (", float[2,3,1] mean" if read else "")
    ends = f"(float[2,3,16] x, float[2,3,16] z) => ({outputs})"
    mean = "mean = ReduceMean<axes = [-1]>(s)" if read else ""
    before = f"{ends} {{ s = Add(x, z) y = LayerNormalization<axis = -1, epsilon = 1e-5>(s, g, b) {mean} }}"
    after = f"{ends} {{ y, mean, inverse, s = com.microsoft.SkipLayerNormalization<epsilon = 1e-5>(x, z, g, b) }}"
    tensors = {"g": drawn(16), "b": drawn(16, seed=1)}
    comparison = compared(tmp_path, (before, tensors), (after, tensors))
    assert comparison.verdict is (Equality.TESTED if read else Equality.PROVED), text_of(comparison)


def made(tmp_path: Path, tensor: np.ndarray, **tensors: np.ndarray) -> tuple[str, ComposedTensor] | None:
    """What a tensor is made of, with names for numbers of values, where all others are said to stand at the place."""
    models = []
    for file, stored in (("a.onnx", tensors), ("b.onnx", {"w": tensor})):
        ends = [f"{'float16' if array.dtype == np.float16 else 'float'}{list(array.shape)} u{n}" for n, array in stored.items()]
        uses = " ".join(f"u{name} = Relu({name})" for name in stored)
        models.append(load(written(tmp_path / file, f"(float[1] x) => ({', '.join(ends)}) {{ {uses} }}", **stored)))
    before, after = (ComparedModel(model, [{"x": drawn(1)}], 1, RunLimit(60)) for model in models)
    names = {value: before.name(value) for value in before.tables.constants}
    (value,) = (v for v in after.tables.constants if after.name(v) == "w")
    found = WeightOrigins(before, after).made_of(value, Nearby(tuple(names), (0.5,), ()))
    if found is None:
        return None
    text = repr(found.term)
    for number, name in names.items():
        text = text.replace(f"v{number}", name)
    return text, found


def test_what_tensors_are_made_of(tmp_path: Path) -> None:
    wide, tall, row = drawn(4, 6), drawn(6, 4, seed=1), drawn(6)
    tensors = {"wide": wide, "tall": tall, "row": row}
    cases = {
        "wide": wide,
        "Transpose[perm=(1,0)](wide)": wide.T,
        "Reshape[drop=1,shape=(2,3)](row)": row.reshape(2, 3),
        "Concat[axis=-2](wide, Transpose[perm=(1,0)](tall))": np.concatenate([wide, tall.T]),
        "Concat[axis=-1](tall, tall, Transpose[perm=(1,0)](wide))": np.concatenate([tall, tall, wide.T], axis=1),
        "Mul(wide, row)": wide * row,
        "Mul(row, 0.5)": row / 2,
        "Transpose[perm=(1,0)](Mul(wide, row))": (wide * row).T,
        "Concat[axis=-1](Mul(row, 0.5), row)": np.concatenate([row / 2, row]),
    }
    for text, tensor in cases.items():
        found = made(tmp_path, np.ascontiguousarray(tensor), **tensors)
        assert found is not None and found[0] == text
        assert found[1].error == 0 or "Mul" in text
    for tensor in (wide + wide, changed(wide), np.concatenate([wide, changed(wide)]), np.concatenate([wide[:2], wide])):
        assert made(tmp_path, tensor, **tensors) is None
    nudged = wide.copy()
    nudged[0, 0] = np.nextafter(nudged[0, 0], np.float32(9))  # what is only moved is the same bit for bit
    assert made(tmp_path, nudged, wide=wide) is None


def test_half_precision_has_its_own_rounding(tmp_path: Path) -> None:
    row, factor = drawn(32).astype(np.float16), drawn(32, seed=1).astype(np.float16)
    found = made(tmp_path, row * factor, row=row, factor=factor)
    assert found is not None and 0 < found[1].error < 8e-3
    assert made(tmp_path, row * factor * np.float16(1.01), row=row, factor=factor) is None


@pytest.mark.parametrize("biased", [False, True])
def test_a_normalisation_that_went_into_a_kernel_is_proved(biased: bool, tmp_path: Path) -> None:
    factor, offset, mean, bias = (drawn(6, seed=place) for place in range(4))
    variance = np.abs(drawn(6, seed=9)) + np.float32(0.5)
    tensors = {"w": drawn(6, 4, 3, 3), "g": factor, "h": offset, "m": mean, "v": variance, **({"c": bias} if biased else {})}
    scale = factor / np.sqrt(variance + np.float32(1e-5))
    shift = offset + ((bias if biased else np.float32(0)) - mean) * scale
    ends = "(float[2,4,5,5] x) => (float[2,6,3,3] y)"
    before = f"{ends} {{ k = Conv(x, w{', c' if biased else ''}) y = BatchNormalization(k, g, h, m, v) }}"
    folded = {"w": tensors["w"] * scale[:, None, None, None], "b": shift}
    assert_proved_and_not_of_wrong(tmp_path, (before, tensors), (f"{ends} {{ y = Conv(x, w, b) }}", folded), "w", "b")
