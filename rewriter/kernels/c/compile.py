"""C text to shared objects, one an instruction set: the same text, compiler and flags give the same bytes."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rewriter.runtime_env import c_compiler

__all__ = ["FLAGS", "LEVELS", "Level", "NotBuilt", "build", "level_of_processor"]

FLAGS = (
    *("-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-fopenmp-simd", "-fno-ident", "-w"),
    *("-fPIC", "-shared", "-s", "-Wl,--build-id=none"),
)
"""Arithmetic keeps infinities, NaN, signs of zero and the order of sums, but for those that the text says may be vectors."""
_LIMIT_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Level:
    """An instruction set.

    Attributes:
        name: as files name it.
        flags: of the compiler.
        features: of a processor that has it, as Linux names them.
        lanes: 32-bit numbers of a vector.
    """

    name: str
    flags: tuple[str, ...]
    features: frozenset[str]
    lanes: int


_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_AMX = _V4 | {"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni"}
LEVELS = {
    level.name: level
    for level in (
        Level("x86-64-v3", ("-march=x86-64-v3",), _V3, 8),
        Level("x86-64-v4", ("-march=x86-64-v4", "-mprefer-vector-width=512"), _V4, 16),
        Level(
            "x86-64-v4-bf16",
            ("-march=x86-64-v4", "-mprefer-vector-width=512", "-mavx512bf16", "-mavx512vnni"),
            _V4 | {"avx512_bf16", "avx512_vnni"},
            16,
        ),
        Level(
            "x86-64-amx",
            (
                *("-march=x86-64-v4", "-mprefer-vector-width=512", "-mavx512bf16", "-mavx512vnni"),
                *("-mamx-tile", "-mamx-bf16", "-mamx-int8"),
            ),
            _AMX,
            16,
        ),
    )
}
"""By name, from the least on."""


class NotBuilt(Exception):
    """A text that does not compile, or no compiler; the message says why and what to do."""


def build(text: str, level: Level, label: str = "a kernel") -> bytes:
    """The shared object of a text.

    Args:
        label: the kernel's name in messages.

    Raises:
        NotBuilt: there is no compiler, it refuses the text or does not end.
    """
    compiler = c_compiler()
    if compiler is None:
        raise NotBuilt(f"{label}: no C compiler was found; install gcc, or name one in the environment variable CC")
    with tempfile.TemporaryDirectory(prefix="superopt-") as folder:
        Path(folder, "kernel.c").write_text(text, encoding="utf-8")
        command = [compiler, *FLAGS, *level.flags, "kernel.c", "-o", "kernel.so", "-lm"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise NotBuilt(f"{label}: {compiler} does not end within {_LIMIT_SECONDS} s for {level.name}") from None
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
            raise NotBuilt(f"{label}: {compiler} refuses it for {level.name}: {first}")
        return Path(folder, "kernel.so").read_bytes()


def level_of_processor() -> Level | None:
    """The last of the levels that this machine's processor has; ``None`` where it has none, or does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    flags = next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())
    return next((level for level in reversed(LEVELS.values()) if level.features <= flags), None)
