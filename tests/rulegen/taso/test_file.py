"""TASO's files: no bytes crash the reader."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mugraph.onnx.wire import Damaged
from rulegen.taso.file import decode
from tests.support.taso_files import FALSE, TRUE


@given(st.binary(max_size=60), st.integers(0, 400))
def test_damaged_files_never_crash(noise: bytes, at: int) -> None:
    content = b"".join([*TRUE.values(), *FALSE.values()])[:400]
    try:
        decode(content[:at] + noise + content[at:])
    except Damaged as problem:
        assert str(problem)
