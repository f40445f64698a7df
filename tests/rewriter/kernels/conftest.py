"""What tests of kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.c_help import Processor, levels
from tools.fuzz.interpreter import Interpreter


@pytest.fixture(scope="session")
def triton_interpreter() -> Iterator[Interpreter]:
    pytest.importorskip("triton")
    process = Interpreter()
    yield process
    process.close()


@pytest.fixture(scope="session", params=["interpreted", "compiled"])
def interpreter(request: pytest.FixtureRequest) -> Iterator[Interpreter | Processor]:
    """What runs kernels: Triton's interpreter, and this processor."""
    if request.param == "compiled":
        if not levels():
            pytest.skip("there is no text for this processor")
        yield Processor(levels()[0])
        return
    yield request.getfixturevalue("triton_interpreter")
