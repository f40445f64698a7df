"""The process that compiles for :class:`rewriter.kernels.triton.compile.Compiler`: little of the project is imported beside it.

A run starts as many of these as there are cores, while it reads its model and its rules: what each imports the run waits for.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rewriter.kernels.machine_code import kept_operands, overwritten_operands

__all__ = ["Job", "Reply", "merge_ptx", "serve"]

_NICE = 5
_LIMIT_SECONDS = 60
_PTX_VERSION = 80
"""Of PTX for architectures to come: what a driver of CUDA 12.0 reads."""
_LAST_LINES = 2
"""Of a compiler's message, beside its first line."""
_SHARED = {80: 163 << 10, 87: 163 << 10, 90: 227 << 10, 100: 227 << 10, 103: 227 << 10}
_LEAST_SHARED = 99 << 10
"""Dynamic shared memory a block may have, by architecture (CUDA programming guide, technical specifications)."""
_ROUNDED = ".tf32"
"""In PTX that rounds operands of products in single precision to ten bits. No source asks for it; Triton's passes may."""

Reply = tuple[dict[str, Any], bytes, bool]
"""Head and image of a result, and whether it would be the same another time."""


@dataclass(frozen=True, slots=True)
class Job:
    """A source to compile for an architecture.

    Attributes:
        launches: function, names and kinds of its arguments, warps and stages of each.
        flag: name of the argument that says whether a kernel may start while the one before it still runs.
        overlaps: what it is.
        is_ptx: PTX is asked for, which drivers compile for later architectures.
    """

    text: str
    launches: tuple[tuple[str, tuple[tuple[str, str], ...], int, int], ...]
    architecture: int
    is_ptx: bool
    flag: str
    overlaps: bool


def serve(connection: Connection, scratch: str) -> None:
    """Compiles jobs as they come, after whatever else the run does."""
    os.nice(_NICE)
    _prepare(scratch)
    with suppress(ImportError):  # the first job says so
        importlib.import_module("triton")
    while True:
        connection.send(_compile(connection.recv()))


def _prepare(scratch: str) -> None:
    """Once a process: a cache of its own for Triton, and a place for temporary files."""
    os.environ["TMPDIR"] = scratch
    os.environ["TRITON_CACHE_DIR"] = str(Path(scratch) / str(os.getpid()))
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    os.environ.pop("TRITON_INTERPRET", None)
    signal.signal(signal.SIGALRM, _expired)


def _expired(number: int, frame: object) -> None:
    raise TimeoutError(f"it takes more than {_LIMIT_SECONDS} seconds")


def _compile(job: Job) -> Reply:
    signal.alarm(_LIMIT_SECONDS)
    try:
        head, image = _compiled(job)
        return head, image, True
    except TimeoutError as problem:
        return {"problem": str(problem)}, b"", False
    except Exception as problem:  # the compiler raises whatever its passes do
        lines = [line.strip() for line in str(problem).splitlines() if line.strip(" ^")]
        told = [*lines[:1], *lines[1:][-_LAST_LINES:]]  # Triton says where first, and what last
        return {"problem": "; ".join(told)[:400] or type(problem).__name__}, b"", True
    finally:
        signal.alarm(0)


def _compiled(job: Job) -> tuple[dict[str, Any], bytes]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    number = job.architecture
    texts, cubins, functions = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.py"  # Triton takes functions from files only
        path.write_text(job.text)
        spec = importlib.util.spec_from_file_location("kernel", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, signature, warps, stages in job.launches:
            aligned = {(i,): [["tt.divisibility", 16]] for i, (_, kind) in enumerate(signature) if kind.startswith("*")}
            options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
            if job.is_ptx:
                options["ptx_version"] = _PTX_VERSION
            types = {**dict(signature), job.flag: "constexpr"}
            source = ASTSource(getattr(module, name), types, {job.flag: job.overlaps}, aligned)
            compiled = triton.compile(source, target=GPUTarget("cuda", number, 32), options=options)
            about = compiled.metadata
            if about.global_scratch_size or about.profile_scratch_size:
                raise ValueError(f"{name} wants {about.global_scratch_size} bytes of global scratch memory")
            if about.shared > _SHARED.get(number, _LEAST_SHARED):
                raise ValueError(f"{name} wants {about.shared} bytes of shared memory, more than sm_{number} has")
            if _ROUNDED in compiled.asm["ptx"]:
                raise ValueError(f"{name}: Triton makes products of TF32 where none are asked for")
            functions.append((about.name, 32 * about.num_warps, about.shared))
            texts.append(compiled.asm["ptx"])
            cubins.append(compiled.asm["cubin"])
    head, kept = {"functions": functions}, [name for text in texts for name in kept_operands(text)]
    if job.is_ptx:
        if kept:
            raise ValueError(
                f"{kept[0]}: a loop reads an operand of a product again, which drivers before CUDA 13.3 overwrite: take "
                f"the GPU's own architecture, sm_{number}"
            )
        return head, merge_ptx(texts).encode()
    image = cubins[0] if len(cubins) == 1 else _assemble(merge_ptx(texts), number)
    if kept and (wrong := overwritten_operands(image, kept, triton.knobs.nvidia.nvdisasm.path)):
        raise ValueError(f"{wrong[0]}: ptxas overwrites an operand that a loop reads again; that of CUDA 13.3 does not")
    return head, image


def merge_ptx(texts: Sequence[str]) -> str:
    """One PTX module of several with the same head; what they declare alike stands once."""
    if len(texts) == 1:
        return texts[0]
    head: list[str] = []
    bodies: list[str] = []
    for number, text in enumerate(texts):
        text = re.sub(r"_\$_str", f"_$_str{number}", text)  # module-level names that two modules use for different things
        start = text.index(".visible .entry")
        head += [line for line in text[:start].splitlines() if line.startswith(".") and line not in head]
        bodies.append(text[start:])
    return "\n".join([*head, *bodies])


def _assemble(ptx: str, number: int) -> bytes:
    """A cubin by Triton's own assembler, with the options that Triton gives it."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        command = [get_ptxas(number).path, f"--gpu-name={sm_arch_from_capability(number)}", str(source), "-o", str(result)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"ptxas: {done.stderr}")
        return result.read_bytes()
