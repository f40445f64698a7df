"""GroupQueryAttention whose lengths are operands, against onnxruntime's own on random caches and lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from mugraph.domains import Real
from tests.support.contrib_cases import I32, Case, read, wide
from tests.support.onnx_helpers import make_node, run_node, session_of_node

THREE = ("y0", "y1", "y2")
TABLE = 40


def drawn(seed: int) -> Case:
    """A step of one new position for up to four sequences, or of several for one, behind a cache of any length."""
    generator = np.random.default_rng(seed)
    batch = int(generator.integers(1, 5))
    new = 1 if batch > 1 else int(generator.choice([1, 2, 5]))
    groups, repeats = int(generator.integers(1, 4)), int(generator.integers(1, 4))
    is_prompt = generator.random() < 0.2
    last = np.full(batch, new - 1) if is_prompt else generator.integers(new - 1, 20, batch)
    total = int(last.max()) + 1
    past = int(generator.choice([total - new, total, total + 7]))
    rotary, packed = bool(generator.integers(2)), bool(generator.integers(2))
    size = 16
    attrs: dict[str, Any] = {"num_heads": groups * repeats, "kv_num_heads": groups, "do_rotary": int(rotary)}
    attrs |= {"rotary_interleaved": 1} if rotary and generator.integers(2) else {}
    attrs |= {"local_window_size": int(generator.integers(1, 9))} if generator.integers(3) == 0 else {}
    attrs |= {"softcap": 2.0} if generator.integers(3) == 0 else {}
    attrs |= {"scale": 0.3} if generator.integers(3) == 0 else {}
    widths = [groups * repeats * size, groups * size, groups * size]
    apart = [(batch, new, width) for width in widths]
    lengths = last.astype(I32)[:, None] if generator.integers(2) else last.astype(I32)
    inputs = [(batch, new, sum(widths)), None, None] if packed else apart
    inputs = [*inputs, *[(batch, groups, past, size)] * 2, lengths, np.asarray(total, I32)]
    return Case("GroupQueryAttention", [*inputs, *[(TABLE, size // 2)] * 2 * rotary], attrs, (6,), THREE)


@pytest.mark.parametrize("seed", range(60))
def test_a_step_is_as_onnxruntime_computes_it(seed: int) -> None:
    """What it gives of each sequence, and the whole cache: what counts, what is new, and nothing behind."""
    case = drawn(seed)
    arrays = case.arrays(seed)
    node = make_node(case.op, arrays, case.attrs, case.outputs, case.domain)
    expected = run_node(node, arrays, case.opset, case.constants)
    record, reading = read(case, arrays)
    assert len(reading.operands) == sum(array is not None for array in arrays)
    actual = record.run(Real(), reading.attrs, wide([arrays[i] for i in reading.operands]))
    for one, other in zip(actual, expected, strict=True):
        assert np.shape(one) == other.shape
        np.testing.assert_allclose(np.asarray(one), other, rtol=2e-5, atol=4e-6)


@pytest.mark.parametrize("past", [0, 9])
def test_a_prompt_of_unequal_sequences_is_filled_up_at_their_end(past: int) -> None:
    """What is behind the end of one is not defined, but where the cache has it: all that was new."""
    grouped = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    last = np.asarray([4, 1, 2], I32)
    inputs = [(3, 5, 128), None, None, *[(3, 2, past, 16)] * 2, last, np.asarray(5, I32), (9, 8), (9, 8)]
    case = Case("GroupQueryAttention", inputs, grouped, (6,), THREE)
    arrays = case.arrays()
    expected = run_node(make_node(case.op, arrays, case.attrs, THREE, case.domain), arrays, case.opset, (6,))
    record, reading = read(case, arrays)
    actual = record.run(Real(), reading.attrs, wide([arrays[i] for i in reading.operands]))
    for one, other in zip(actual[1:], expected[1:], strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=2e-5, atol=4e-6)
    for sequence, end in enumerate(last + 1):
        np.testing.assert_allclose(np.asarray(actual[0])[sequence, :end], expected[0][sequence, :end], rtol=2e-5, atol=4e-6)


@pytest.mark.parametrize("new", [1, 3])
def test_a_buffer_that_is_read_and_written_keeps_what_does_not_count(new: int) -> None:
    """Bound to the buffers that it reads the operator changes what is new alone, and gives what it gives beside them."""
    batch, past, last = (3, 12, [7, 4, 0]) if new == 1 else (1, 12, [7])
    grouped = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    rest = [(batch, 2, past, 16)] * 2 + [np.asarray(last, I32), np.asarray(8, I32), (9, 8), (9, 8)]
    case = Case("GroupQueryAttention", [(batch, new, 128), None, None, *rest], grouped, (6,), THREE)
    arrays = case.arrays()
    session, fed = session_of_node(make_node(case.op, arrays, case.attrs, THREE, case.domain), arrays, case.opset, (6,))
    binding, values = session.io_binding(), {name: ort.OrtValue.ortvalue_from_numpy(array.copy()) for name, array in fed.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y0", "cpu")
    for name, source in (("y1", "x3"), ("y2", "x4")):
        binding.bind_ortvalue_output(name, values[source])
    session.run_with_iobinding(binding)
    result, *caches = (value.numpy() for value in binding.get_outputs())
    record, reading = read(case, arrays)
    expected = [np.asarray(x) for x in record.run(Real(), reading.attrs, wide([arrays[i] for i in reading.operands]))]
    np.testing.assert_allclose(result, expected[0], rtol=2e-5, atol=4e-6)
    for cache, other, before in zip(caches, expected[1:], (fed["x3"], fed["x4"]), strict=True):
        for sequence, end in enumerate(np.asarray(last) + 1):
            np.testing.assert_allclose(cache[sequence, :, :end], other[sequence, :, :end], rtol=2e-5, atol=4e-6)
            assert np.array_equal(cache[sequence, :, end:], before[sequence, :, end:]) and (other[sequence, :, end:] == 0).all()
            assert np.array_equal(cache[sequence, :, : end - new], before[sequence, :, : end - new])
