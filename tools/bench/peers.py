"""Other optimisers of ONNX models, each behind one call: a source file, a target file, and a note on what was done.

The module stands alone, so that an interpreter that has the peers but not this package can run it; `run` starts one with a
time limit and turns whatever goes wrong there (an exception, a crash, no answer) into a `PeerFailed` with one line.

    python tools/bench/peers.py onnxslim model.onnx slim.onnx
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# onnxruntime.transformers.optimizer has fusions by kind of model; what fits best is told by the beginning of the file's name.
TRANSFORMER_KINDS = {"bert": "bert", "gpt2": "gpt2", "llama": "gpt2", "qwen3": "qwen3", "swin": "swin", "t5": "t5", "vit": "vit"}
DEFAULT_KIND = "bert"


class PeerFailed(Exception):
    """A peer gave no model; the message says why in one line."""


def transformers_optimizer(source: Path, target: Path, gpu: bool) -> str:
    """onnxruntime.transformers.optimizer with the kind of model that the name tells, else as it treats BERT."""
    from onnxruntime.transformers.optimizer import optimize_model

    named = next((kind for name, kind in TRANSFORMER_KINDS.items() if source.name.startswith(name)), DEFAULT_KIND)
    failures: list[str] = []
    for kind in dict.fromkeys((named, DEFAULT_KIND)):
        try:
            model = optimize_model(str(source), model_type=kind, use_gpu=gpu, provider="cuda" if gpu else None)
            fused = {name: count for name, count in model.get_fused_operator_statistics().items() if count}
            model.save_model_to_file(str(target))
        except Exception as problem:
            failures.append(f"{kind}: {problem}")
        else:
            ops = ", ".join(f"{name} {count}" for name, count in fused.items()) or "nothing fused"
            return "; ".join([*failures, f"as {kind}: {ops}"])
    raise PeerFailed("; ".join(failures))


def onnxslim(source: Path, target: Path, gpu: bool) -> str:
    """onnxslim with its default passes."""
    import onnx
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), target)
    return ""


def onnxsim(source: Path, target: Path, gpu: bool) -> str:
    """onnxsim with its default passes."""
    import onnx
    import onnxsim

    model, valid = onnxsim.simplify(onnx.load(source))
    if not valid:
        raise PeerFailed("its own check of the result fails")
    onnx.save(model, target)
    return ""


def onnxscript(source: Path, target: Path, gpu: bool) -> str:
    """onnxscript's optimizer and rewriter with its fusions for onnxruntime."""
    import onnx_ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    model, counts = optimize_for_ort(onnx_ir.load(source))
    onnx_ir.save(model, target)
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "nothing fused"


PEERS: dict[str, Callable[[Path, Path, bool], str]] = {
    "transformers": transformers_optimizer,
    "onnxslim": onnxslim,
    "onnxsim": onnxsim,
    "onnxscript": onnxscript,
}
"""Name to a function of source, target and whether the model is for a GPU; it returns a note."""

PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxslim", "onnxsim", "onnxscript")


def versions() -> dict[str, str]:
    """The peers' packages that are installed."""
    installed: dict[str, str] = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def run(python: Path, peer: str, source: Path, target: Path, gpu: bool = False, seconds: float = 600) -> str:
    """Runs a peer in a process of its own.

    Args:
        python: An interpreter that has the peers.
        peer: A key of `PEERS`.
        source, target: Model files.
        gpu: Whether the result is for the CUDA provider.
        seconds: Time limit.

    Returns:
        The peer's note.

    Raises:
        PeerFailed: It gave no model.
    """
    command = [str(python), "-P", __file__, peer, str(source), str(target), *(["--gpu"] if gpu else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"no result after {seconds:.0f} s") from None
    if done.returncode < 0:
        raise PeerFailed(f"killed by signal {-done.returncode}")
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise PeerFailed((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]) from None
    if "failure" in answer:
        raise PeerFailed(answer["failure"])
    return str(answer["note"])


def main() -> None:
    """Runs one peer and prints one line of JSON: a note, or why it failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--gpu", action="store_true", help="the result is for the CUDA provider")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            answer = {"note": PEERS[arguments.peer](arguments.source, arguments.target, arguments.gpu)}
    except Exception as problem:  # whatever a peer raises is its result
        text = str(problem) if isinstance(problem, PeerFailed) else f"{type(problem).__name__}: {problem}"
        answer = {"failure": " ".join(text.split())[:300]}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
