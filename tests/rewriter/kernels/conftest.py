"""What tests of kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.triton_help import Interpreter


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    pytest.importorskip("triton")
    process = Interpreter()
    yield process
    process.close()
