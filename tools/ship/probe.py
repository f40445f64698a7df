"""Which operators onnxruntime's execution providers have kernels for, by element type: asked, not assumed.

    python -m tools.ship.probe                      asks every provider that onnxruntime finds on this machine
    python -m tools.ship.probe --provider cuda

Each operator of the registry is built as a one-node model for every float type, opened with that provider alone (on CUDA
``session.disable_cpu_ep_fallback`` is set), run on random operands and compared with the record's own float64 evaluation. The
answers go to ``mugraph/ops/support.json``, which the records read; the other provider's part of it stays. A probe that kills
its process counts as refused, and the next one gets a fresh process.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from mugraph.domains import Real
from mugraph.ops import REGISTRY, NotUnderstood, filled, get_operator
from mugraph.ops.forms import OnnxForm
from mugraph.ops.support import FILE
from mugraph.terms.shape import DataType, TensorType, Undecided, concrete
from mugraph.terms.term import Term
from mugraph.terms.text import parse_term, parse_type
from rewriter.runtime_env import environment, usable_providers

OPSET = 24
TYPES = {
    DataType.FLOAT: 1e-3,
    DataType.FLOAT16: 2e-2,
    DataType.BFLOAT16: 1e-1,
    DataType.DOUBLE: 1e-5,
}
"""Element types probed, with the greatest error over the root mean square that passes as right."""
PROVIDERS: dict[str, tuple[str, dict[str, str]]] = {
    "cpu": ("CPUExecutionProvider", {}),
    "cuda": ("CUDAExecutionProvider", {"use_tf32": "0"}),
}
PATIENCE = 120.0
"""Seconds until a probe counts as hanging."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One sample in one element type, but for operands whose own the sample names."""

    sample: str
    dtype: DataType

    def application(self) -> tuple[Term, list[TensorType]]:
        text, types = self.sample.split(" | ")
        written = dict(item.split(":") for item in types.split())
        term = parse_term(text)
        operands = ((written[operand.name], parse_type(written[operand.name])) for operand in term.inputs)
        return term, [TensorType(self.dtype, t.shape) if one.startswith("[") else t for one, t in operands]


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The answer of a provider to a probe.

    Attributes:
        status: ``kernel`` (the provider's own), ``runs`` (right, but inlined or between casts), ``wrong`` or ``refused``.
        detail: the error, or how far off the result is.
    """

    status: str
    detail: str = ""


def probes() -> list[Probe]:
    """Every sample of every record in every element type.

    Operands in capitals are initializers: onnxruntime's CUDA provider leaves an NhwcConv with computed weights to the CPU.
    """
    return [Probe(sample, dtype) for record in REGISTRY.values() for sample in record.samples for dtype in TYPES]


def operands(types: list[TensorType], seed: int = 0) -> list[np.ndarray]:
    """Floats around one half (positive, for roots and logarithms); ones and a few zeros as masks, indices and booleans."""
    generator = np.random.default_rng(seed)
    arrays: list[np.ndarray] = []
    for type_ in types:
        shape = concrete(type_.shape)
        assert shape is not None
        if type_.dtype in TYPES:
            arrays.append(generator.uniform(0.1, 0.9, shape).astype(np.float32))
        elif type_.dtype == DataType.BOOL:
            arrays.append(generator.random(shape) < 0.5)
        else:
            array = np.asarray(generator.random(shape) < 0.8, type_.dtype.numpy())
            if array.ndim:
                array[..., 0] = 1
            arrays.append(array)
    return arrays


def ask(probe: Probe, provider: str) -> ProbeAnswer:
    """Builds, opens, runs and judges one probe in this process."""
    term, types = probe.application()
    record = get_operator(term.op)
    attrs = {**record.defaults, **dict(term.attrs)}
    try:
        outputs = record.types(attrs, types)
        arrays = operands(types)
        form = filled(record.to_onnx(attrs, types, OPSET), arrays.__getitem__)
    except (NotUnderstood, Undecided, ValueError) as problem:
        return ProbeAnswer("refused", str(problem))
    given = {index for index in range(len(types)) if not term.inputs[index].name.isupper()}
    model, feeds = model_of(form, types, arrays, given, outputs)
    try:
        loaded, actual = run(model, feeds, provider)
    except Exception as problem:  # onnxruntime raises many types where a kernel is missing
        return ProbeAnswer("refused", " ".join(str(problem).split())[:300])
    names = operand_names(form)
    applications = [node for node in loaded.graph.node if node.op_type == form.op_type]
    kept = any(list(node.input)[: len(names)] == names for node in applications) or (not names and bool(applications))
    rounded = [
        a.astype(t.dtype.numpy()).astype(np.float64) if t.dtype in TYPES else a for a, t in zip(arrays, types, strict=True)
    ]
    expected = record.run(Real(np.float64), attrs, rounded)
    worst = max((error(a, np.asarray(e)) for a, e in zip(actual, expected, strict=True)), default=0.0)
    dtypes = [t.dtype for t in (*types, *outputs) if t.dtype in TYPES]
    limit = max((TYPES[dtype] for dtype in dtypes), default=0.0)
    if not worst <= limit:
        return ProbeAnswer("wrong", f"off by {worst:.1e} of the root mean square")
    return ProbeAnswer("kernel" if kept else "runs", f"off by {worst:.1e}")


def operand_names(form: OnnxForm) -> list[str]:
    """The names of a node's operands in a probe's model: ``x`` for the record's, ``c`` for those that the form brings."""
    return [f"x{x}" if isinstance(x, int) else "" if x is None else f"c{index}" for index, x in enumerate(form.inputs)]


def model_of(
    form: OnnxForm,
    types: Sequence[TensorType],
    arrays: Sequence[np.ndarray],
    given: Collection[int],
    outputs: Sequence[TensorType],
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model of a probe, whose inputs and outputs are no narrower than 32 bits, and what it is fed with.

    Args:
        form: the node that is asked about.
        types, arrays: of its operands.
        given: which operands are inputs; the others are initializers.
        outputs: types of its results.
    """
    nodes, constants, infos, feeds = [], [], [], {}
    for index, (type_, array) in enumerate(zip(types, arrays, strict=True)):
        if index not in given:
            constants.append(onnx.numpy_helper.from_array(array.astype(type_.dtype.numpy()), f"x{index}"))
            continue
        narrow = type_.dtype in TYPES and type_.dtype != DataType.FLOAT
        input_name = f"given{index}" if narrow else f"x{index}"
        dtype = DataType.FLOAT if narrow else type_.dtype
        infos.append(onnx.helper.make_tensor_value_info(input_name, int(dtype), array.shape))
        feeds[input_name] = array
        if narrow:
            nodes.append(onnx.helper.make_node("Cast", [input_name], [f"x{index}"], to=int(type_.dtype)))
    for index, item in enumerate(form.inputs):
        if item is not None and not isinstance(item, int):
            constants.append(onnx.numpy_helper.from_array(np.asarray(item), f"c{index}"))
    plain = [f"y{i}" for i in range(len(outputs))]
    nodes.append(
        onnx.helper.make_node(
            form.op_type, operand_names(form), form.output_names(plain), domain=form.domain, **as_onnx(form.attributes)
        )
    )
    results = []
    for name, type_ in zip(plain, outputs, strict=True):
        narrow = type_.dtype in (DataType.FLOAT16, DataType.BFLOAT16)
        if narrow:
            nodes.append(onnx.helper.make_node("Cast", [name], [f"{name}f"], to=int(DataType.FLOAT)))
        dtype = DataType.FLOAT if narrow else type_.dtype
        results.append(onnx.helper.make_tensor_value_info(f"{name}f" if narrow else name, int(dtype), None))
    graph = onnx.helper.make_graph(nodes, "probe", infos, results, constants)
    opsets = [onnx.helper.make_opsetid("", OPSET), *([onnx.helper.make_opsetid(form.domain, 1)] if form.domain else [])]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], provider: str) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """A model as onnxruntime executes it, fusing nothing, and its results. Raises whatever onnxruntime raises."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if provider == "cuda":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "loaded.onnx"
        options.optimized_model_filepath = str(written)
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[PROVIDERS[provider]])
        if PROVIDERS[provider][0] not in session.get_providers():
            raise RuntimeError(f"{PROVIDERS[provider][0]} is not to be had")
        return onnx.load(written), session.run(None, feeds)


def as_onnx(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a node, arrays as tensors."""
    return {k: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}


def error(actual: Any, expected: np.ndarray) -> float:
    """The greatest difference over the root mean square; infinite for another shape."""
    a, e = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if a.shape != e.shape:
        return float("inf")
    scale = float(np.sqrt(np.mean(e * e))) if e.size else 0.0
    return float(np.max(np.abs(a - e), initial=0.0)) / (scale or 1.0)


def work(provider: str, first: int) -> None:
    """The child process: says which probe begins, then its answer, one JSON line each."""
    for index, probe in enumerate(probes()):
        if index >= first:
            print(json.dumps({"begin": index}), flush=True)
            print(json.dumps({"end": index, **asdict(ask(probe, provider))}), flush=True)


def worker_command(provider: str, first: int) -> list[str]:
    """The command that starts a child process at the probe number ``first``."""
    return [sys.executable, "-m", "tools.ship.probe", "--provider", provider, "--worker", str(first)]


def answers(provider: str) -> Iterator[tuple[Probe, ProbeAnswer]]:
    """All answers, from as many child processes as it takes."""
    todo, index = probes(), 0
    while index < len(todo):
        command = worker_command(provider, index)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            descriptor, text, reason = child.stdout.fileno(), b"", "its process ended"
            while index < len(todo):
                if not select.select([descriptor], [], [], PATIENCE)[0]:
                    reason = f"no answer within {PATIENCE:.0f} s"
                    child.kill()
                    break
                piece = os.read(descriptor, 1 << 16)
                if not piece:
                    break
                *lines, text = (text + piece).split(b"\n")
                for line in lines:
                    said = json.loads(line)
                    if "end" in said:
                        yield todo[said["end"]], ProbeAnswer(said["status"], said["detail"])
                        index = said["end"] + 1
            if index < len(todo):
                yield todo[index], ProbeAnswer("refused", f"{reason} (exit code {child.wait()})")
                index += 1


def summary(answered: list[tuple[Probe, ProbeAnswer]]) -> dict[str, dict[str, list[str]]]:
    """Operator to the element types in which the provider has a kernel, and those in which it runs all the same.

    One sample with a kernel is enough; one with a wrong result is too much.
    """
    statuses: dict[str, dict[str, set[str]]] = {}
    for probe, answer in answered:
        term, types = probe.application()
        if probe.dtype != DataType.FLOAT and not any(t.dtype in TYPES for t in types):
            continue  # the operator has no float operand: the probes are all the same
        statuses.setdefault(term.op, {}).setdefault(probe.dtype.name.lower(), set()).add(answer.status)
    table = {}
    for op, by_type in sorted(statuses.items()):
        right = {dtype: s for dtype, s in by_type.items() if "wrong" not in s}
        kernel = sorted(dtype for dtype, s in right.items() if "kernel" in s)
        table[op] = {"kernel": kernel, "runs": sorted(dtype for dtype, s in right.items() if "runs" in s and dtype not in kernel)}
    return table


def update(table: Path, provider: str) -> None:
    """Asks one provider, prints its answers and puts them into a table, in which those of others stay."""
    answered: list[tuple[Probe, ProbeAnswer]] = []
    for probe, answer in answers(provider):
        answered.append((probe, answer))
        if answer.status in ("wrong", "refused"):
            print(f"{answer.status:8}{probe.dtype.name.lower():9}{probe.sample}: {answer.detail}", flush=True)
    operators = summary(answered)
    data = json.loads(table.read_text()) if table.exists() else {}
    data[provider] = {"environment": environment(provider), "operators": operators}
    table.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    for op, types in operators.items():
        print(f"{op:34}{', '.join(types['kernel']) or 'none':36}{'runs: ' + ', '.join(types['runs']) if types['runs'] else ''}")
    statuses = [answer.status for _, answer in answered]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in ("kernel", "runs", "wrong", "refused"))
    print(f"{provider}: {len(answered)} probes: {counts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=list(PROVIDERS), help="default: every one that onnxruntime finds on this machine")
    parser.add_argument("--out", type=Path, default=FILE, help="the table to update; default: the package's own")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        work(arguments.provider, arguments.worker)
        return
    here = [provider for provider in PROVIDERS if provider in usable_providers()]
    if arguments.provider is not None and arguments.provider not in here:
        parser.error(f"provider {arguments.provider}: onnxruntime finds none on this machine")
    for provider in here if arguments.provider is None else [arguments.provider]:
        update(arguments.out, provider)


if __name__ == "__main__":
    main()
