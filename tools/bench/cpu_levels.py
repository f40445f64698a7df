"""For which instruction sets the objects are that a session opens of a model's kernels in C.

    python -m tools.bench.cpu_levels MODEL...

Each model is opened in a process of its own. The runtime library takes of every kernel the best object that processor and system
admit; which it took is read from the memory of that process.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mugraph.blocks.operator import CompiledKernel
from mugraph.onnx import load
from rewriter.kernels.c.objects import FEATURES
from rewriter.kernels.within import kernels_of
from rewriter.runtime.plan import unpack_objects
from rewriter.runtime_env import new_session

__all__ = ["in_words", "levels_opened"]

_MEMORY_FILE = "memfd:onnx.superopt"
"""How Linux names the files without a name from which the library opens objects."""


def levels_opened(path: Path) -> dict[str, int]:
    """Kernels of a model by the instruction set of the object that a session of it runs, in a process of its own.

    Raises:
        RuntimeError: onnxruntime does not open it; the message is the last line of what it says.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench.cpu_levels", "--here", str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return dict(json.loads(done.stdout))


def in_words(path: Path) -> str:
    """The same in words, with how many kernels have numbers in parts; empty where a model has no kernel in C."""
    programs = _programs(path)
    if not programs:
        return ""
    levels = ", ".join(f"{count} {level}" for level, count in sorted(levels_opened(path).items(), reverse=True))
    parts = Counter(max(s.parts for schedules in program.variants.schedules for s in schedules) for program in programs)
    split = "".join(f", {count} in {number} parts" for number, count in sorted(parts.items()) if number > 1)
    return f"{len(programs)} kernels in C: {levels}{split}"


def _programs(path: Path) -> list[CompiledKernel]:
    """Those of the nodes ``CpuKernel`` of a model, of every kernel one."""
    model = load(path)
    return [model.programs[kernel] for kernel in kernels_of(model.graph) if model.programs[kernel].on_cpu]


def _opened_here(path: Path) -> Counter[str]:
    session = new_session(path)
    opened, levels = list(_opened_objects()), {features: name for name, features in FEATURES.items()}
    found = Counter[str]()
    for program in _programs(path):
        images = unpack_objects(program.attributes["images"])
        mine = [image for image in images if any(_holds(image.content, at, code) for at, code in opened)]
        found[levels[max(image.features for image in mine)] if mine else "none"] += 1
    del session
    return found


def _opened_objects() -> Iterator[tuple[int, bytes]]:
    """The code of the objects that this process has opened, each with its place in its file."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        addresses, access, offset, *_ = line.split()
        if _MEMORY_FILE in line and "x" in access:
            first, last = (int(address, 16) for address in addresses.split("-"))
            yield int(offset, 16), ctypes.string_at(first, last - first)


def _holds(content: bytes, at: int, code: bytes) -> bool:
    """Whether a file has such code at a place; the last page of a mapping may go beyond the file."""
    part = content[at : at + len(code)]
    return bool(part) and code.startswith(part)


def main(arguments: list[str]) -> None:
    """Prints what is open of each model; with ``--here`` in front, of one in this process, as JSON."""
    if arguments[:1] == ["--here"]:
        print(json.dumps(_opened_here(Path(arguments[1]))))
        return
    for name in arguments:
        print(f"{name}: {in_words(Path(name)) or 'no kernel in C'}")


if __name__ == "__main__":
    main(sys.argv[1:])
