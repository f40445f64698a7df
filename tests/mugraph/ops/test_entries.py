"""Constant tensors as texts."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.ops.entries import array_of, array_text


@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (4, 5)])
def test_a_text_is_its_tensor(dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.random.default_rng(0).standard_normal(shape) * 3).astype(dtype)
    read = array_of(array_text(array))
    assert read.dtype == array.dtype and read.shape == shape
    np.testing.assert_array_equal(read, array)


def test_what_is_no_text_of_a_tensor_is_refused() -> None:
    text = array_text(np.arange(12).reshape(3, 4))
    sizes = [text.replace("3x4", other) for other in ("3x5", "3x3", "axb")]
    for wrong in ("", "int64:3x4", "uint8:2:eNpjAAAAAgAB", text[:-4], f"{text}!", *sizes):
        with pytest.raises(ValueError, match=r"tensor|literal"):
            array_of(wrong)
    with pytest.raises(ValueError, match="the text of a tensor"):
        array_of("int64:99999999999x9:" + text.rpartition(":")[2])
    with pytest.raises(ValueError, match="without structure"):
        array_text(np.random.default_rng(0).standard_normal((512, 512)))
    with pytest.raises(ValueError, match="a tensor of complex64"):
        array_text(np.zeros(2, np.complex64))
