"""Interrupts from the keyboard: none is lost where Python ignores exceptions."""

from __future__ import annotations

import subprocess
import sys

_LOST = """
import time, weakref
from mugraph.interrupts import heed_interrupts

class Value:
    pass

def finalized(_):
    raise KeyboardInterrupt

{heed}
value = Value()
reference = weakref.ref(value, finalized)
try:
    del value
    time.sleep({seconds})
except KeyboardInterrupt:
    print("heard")
"""


def _run(heed: str, seconds: float) -> subprocess.CompletedProcess[str]:
    code = _LOST.format(heed=heed, seconds=seconds)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_an_interrupt_in_a_callback_of_a_weak_reference_is_sent_again() -> None:
    done = _run("heed_interrupts()", 30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "heard\n", "")


def test_python_alone_loses_it() -> None:
    done = _run("", 0.1)
    assert done.stdout == "" and "KeyboardInterrupt" in done.stderr
