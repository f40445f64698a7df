"""Damaged files: valid models changed field by field, or byte by byte, and what the command says of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from click.testing import CliRunner
from google.protobuf.message import Message
from onnx import ModelProto, TensorProto, helper

from rewriter.cli.main import main
from tools.fuzz.campaign import Show
from tools.fuzz.conformance import cases
from tools.fuzz.fates import CaseReport, Fate, origin_of
from tools.fuzz.models.generate import random_model
from tools.fuzz.oracle import compare_models
from tools.fuzz.running import CannotRun, drawn, run, session
from tools.ship.spellings import SPELLINGS
from tools.zoo.built import lora_block

__all__ = ["damaged", "examine_file", "names", "run_original"]

_INTEGERS = (0, 1, -1, 2, 7, 127, 255, 2**31 - 1, -(2**31), 2**32, 2**62, -(2**62), 2**63 - 1)
_STRINGS = ("", "\0", "a\0b", "..", "/", "x" * 100_000, "ü", " ", "MatMul", "If", "com.microsoft", "ai.onnx.ml")
_FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e38, -0.0)
_PLACES = ("../secret", "/etc/passwd", "a\0b", "", ".", "x" * 5000, "model.onnx", "missing.bin", "../" * 40 + "etc/passwd")

Random = np.random.Generator


def names(seed: int, count: int) -> list[str]:
    """``SEED NUMBER`` of the first files of a seed."""
    return [f"{seed} {number}" for number in range(count)]


def examine_file(name: str, show: Show) -> CaseReport:
    """Runs the command on the file of one of :func:`names`."""
    seed, number = map(int, name.split())
    content = damaged(seed, number)
    show({"model.onnx": content})
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        source, target, summary = (Path(folder) / name for name in ("model.onnx", "written.onnx", "summary.json"))
        source.write_bytes(content)
        arguments = [str(source), "-o", str(target), "--provider", "cpu", "--json", str(summary), "--debug"]
        arguments += ["--deterministic", "--strategy", "greedy"]  # of damaged blocks the search took nearly all of the time
        done = CliRunner().invoke(main, arguments)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            return CaseReport(Fate.TRACEBACK, origin_of(done.exception), str(done.exception))
        if done.exit_code == 2:
            return _refused(done.stderr, source)
        if done.exit_code or not target.exists():
            return CaseReport(Fate.LOST, f"exit code {done.exit_code}", done.output)
        if json.loads(summary.read_text())["improved"]:
            return compare_models(content, target.read_bytes())
        return CaseReport(Fate.UNCHANGED)


def run_original(name: str) -> None:
    """Runs the file of one of :func:`names` in onnxruntime, with its optimisers and without, where it can be."""
    content = damaged(*map(int, name.split()))
    for optimize in (False, True):
        with suppress(CannotRun):
            run(content, drawn(session(content, optimize)), optimize)


def _refused(said: str, source: Path) -> CaseReport:
    """A refusal, if it is one line that names the file."""
    lines = said.strip().splitlines()
    if len(lines) != 1 or str(source) not in lines[0]:
        return CaseReport(Fate.TRACEBACK, "an error that is not one line naming the file", said[:2000])
    kind = lines[0].replace(str(source), "MODEL").split(":")[2:4]
    return CaseReport(Fate.REFUSED, ":".join(kind).strip()[:60])


# What is damaged


@cache
def _small_cases() -> tuple[str, ...]:
    """Names of conformance cases whose models are small."""
    return tuple(name for name, case in cases().items() if case.kind == "node" and case.proto().ByteSize() < 20_000)


def _whole(g: Random) -> ModelProto:
    """A valid model."""
    way = g.random()
    if way < 0.05:
        return lora_block(hidden=16, heads=2, sequence=4, intermediate=24, rank=2)
    if way < 0.55:
        chosen = ModelProto()
        chosen.CopyFrom(cases()[_small_cases()[g.integers(len(_small_cases()))]].proto())
        return chosen
    if way < 0.75:
        return SPELLINGS[[*SPELLINGS][g.integers(len(SPELLINGS))]].build()
    return random_model(17, int(g.integers(500))).proto


def damaged(seed: int, number: int) -> bytes:
    """The file of a number."""
    g = np.random.default_rng([seed, number, 3])
    model = _whole(g)
    if g.random() < 0.15:
        return _bytes_changed(g, model.SerializeToString())
    for _ in range(int(g.integers(1, 4))):
        change = _field if g.random() < 0.55 else _CHANGES[g.integers(len(_CHANGES))]
        try:
            change(g, model)
        except (ValueError, IndexError, TypeError):  # nothing there to change so, or protobuf forbids it
            continue
    content = model.SerializeToString()
    return _bytes_changed(g, content) if g.random() < 0.1 else content


def _bytes_changed(g: Random, content: bytes) -> bytes:
    """Cut off, bits turned, bytes put in or taken out; now and then a name that is no text."""
    data = bytearray(content)
    match int(g.integers(5)):
        case 0:
            del data[int(g.integers(len(data) + 1)) :]
        case 1:
            for _ in range(int(g.integers(1, 8))):
                data[int(g.integers(len(data)))] ^= 1 << int(g.integers(8))
        case 2:
            place = int(g.integers(len(data)))
            data[place:place] = g.bytes(int(g.integers(1, 40)))
        case 3:
            place = int(g.integers(len(data)))
            del data[place : place + int(g.integers(1, 40))]
        case _:
            place = data.find(b"Add")
            data[max(place, 0) : max(place, 0) + 3] = b"\xff\xfe\xc0"
    return bytes(data)


# Any field


def _messages(message: Message, depth: int = 0) -> Iterator[Message]:
    """A message and all that stand in it."""
    yield message
    if depth > 30:
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for inner in value if field.is_repeated else (value,):
            yield from _messages(inner, depth + 1)


def _field(g: Random, model: ModelProto) -> None:
    """A field of a message anywhere in the model: another value, none, one more, two exchanged."""
    messages = [*_messages(model)]
    message = messages[g.integers(len(messages))]
    present = [field for field, _ in message.ListFields()]
    fields = present if present and g.random() < 0.8 else message.DESCRIPTOR.fields
    field = fields[g.integers(len(fields))]
    if field.is_repeated:
        _repeated(g, field, getattr(message, field.name))
    elif field.message_type is not None:
        message.ClearField(field.name) if g.random() < 0.5 else getattr(message, field.name).SetInParent()
    elif g.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(g, field, model))


def _repeated(g: Random, field: Any, items: Any) -> None:
    way = g.random()
    if way < 0.3 and len(items):
        del items[int(g.integers(len(items)))]
    elif way < 0.6 and len(items):
        items.append(items[int(g.integers(len(items)))])
    elif way < 0.8 and len(items) > 1:
        i, j = (int(k) for k in g.choice(len(items), 2, replace=False))
        order = [*items]
        order[i], order[j] = order[j], order[i]
        del items[:]
        items.extend(order)
    elif field.message_type is not None:
        items.add()
    elif len(items) and way < 0.9:
        items[int(g.integers(len(items)))] = _scalar(g, field, None)
    else:
        items.append(_scalar(g, field, None))


def _scalar(g: Random, field: Any, model: ModelProto | None) -> Any:
    """A value that a field of numbers or text may take."""
    if field.enum_type is not None:
        return int(g.choice([0, 1, 2, 3, 5, 7, 10, 16, 23, 99]))
    match field.cpp_type:
        case field.CPPTYPE_STRING:
            if model is not None and g.random() < 0.5:
                names = [name for node in model.graph.node for name in (*node.input, *node.output)]
                text = names[g.integers(len(names))] if names else ""
            else:
                text = _STRINGS[g.integers(len(_STRINGS))]
            return text.encode() if field.type == field.TYPE_BYTES else text
        case field.CPPTYPE_FLOAT | field.CPPTYPE_DOUBLE:
            return _FLOATS[g.integers(len(_FLOATS))]
        case field.CPPTYPE_INT32:
            return int(np.int64(_INTEGERS[g.integers(len(_INTEGERS))]).astype(np.int32))
        case _:
            return _INTEGERS[g.integers(len(_INTEGERS))]


# Damage with a plan


def _one(g: Random, items: Any) -> Any:
    return items[int(g.integers(len(items)))]


def _huge_shape(g: Random, model: ModelProto) -> None:
    value = _one(g, [*model.graph.input, *model.graph.output, *model.graph.value_info])
    _one(g, value.type.tensor_type.shape.dim).dim_value = int(_one(g, _INTEGERS))


def _huge_weight(g: Random, model: ModelProto) -> None:
    tensor = _one(g, model.graph.initializer)
    tensor.dims[int(g.integers(len(tensor.dims)))] = int(_one(g, _INTEGERS))


def _external(g: Random, model: ModelProto) -> None:
    tensor = _one(g, model.graph.initializer)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", _one(g, _PLACES)), ("offset", str(_one(g, _INTEGERS))), ("length", str(_one(g, _INTEGERS)))):
        if key == "location" or g.random() < 0.5:
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
    if g.random() < 0.7:
        tensor.ClearField("raw_data")


def _duplicate_name(g: Random, model: ModelProto) -> None:
    _one(g, model.graph.node).output[0] = _one(g, model.graph.node).output[0]


def _cycle(g: Random, model: ModelProto) -> None:
    node = _one(g, model.graph.node)
    node.input[int(g.integers(len(node.input)))] = _one(g, model.graph.node).output[0]


def _dangling(g: Random, model: ModelProto) -> None:
    node = _one(g, model.graph.node)
    node.input[int(g.integers(len(node.input)))] = "nowhere"


def _no_weight(g: Random, model: ModelProto) -> None:
    del model.graph.initializer[int(g.integers(len(model.graph.initializer)))]


def _versions(g: Random, model: ModelProto) -> None:
    if g.random() < 0.5:
        del model.opset_import[:]
    for _ in range(int(g.integers(1, 3))):
        model.opset_import.append(helper.make_opsetid(_one(g, ("", "ai.onnx", "x", "com.microsoft")), int(_one(g, range(1, 40)))))


def _empty(g: Random, model: ModelProto) -> None:
    model.graph.ClearField(_one(g, ("node", "output", "input", "initializer", "name")))


def _nested(g: Random, model: ModelProto) -> None:
    """Ifs within Ifs."""
    value = _one(g, model.graph.output)
    graph = helper.make_graph([helper.make_node("Identity", [value.name], ["deep"])], "g", [], [onnx.ValueInfoProto(name="deep")])
    condition = helper.make_node("Constant", [], ["always"], value=helper.make_tensor("", TensorProto.BOOL, [], [True]))
    for _ in range(int(_one(g, (1, 3, 30)))):
        node = helper.make_node("If", ["always"], ["deep"], then_branch=graph, else_branch=graph) if g.random() < 0.1 else None
        branches = {"then_branch": graph, "else_branch": helper.make_graph(graph.node[:1], "e", [], graph.output[:1])}
        node = node or helper.make_node("If", ["always"], ["deep"], **branches)
        graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="deep")])
        if graph.ByteSize() > 1 << 17:
            break
    model.graph.node.append(condition)
    model.graph.node.extend(graph.node)


def _recursive(g: Random, model: ModelProto) -> None:
    """Functions that call themselves, each other, or two of the next each."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    count = int(_one(g, (1, 2, 25)))
    for number in range(count):
        callee = f"f{number + 1}" if number + 1 < count else _one(g, ("f0", "missing", "Neg"))
        domain = "" if callee == "Neg" else "f"
        body = [helper.make_node(callee, ["x"], ["a"], domain=domain), helper.make_node(callee, ["a"], ["y"], domain=domain)]
        model.functions.append(helper.make_function("f", f"f{number}", ["x"], ["y"], body, imports))
    model.opset_import.append(helper.make_opsetid("f", 1))
    model.graph.node.append(helper.make_node("f0", [_one(g, model.graph.node).output[0]], ["called"], domain="f"))


def _enormous(g: Random, model: ModelProto) -> None:
    """A tensor that no memory holds, made by a few bytes."""
    model.graph.initializer.append(helper.make_tensor("many", TensorProto.INT64, [1], [int(_one(g, _INTEGERS))]))
    model.graph.node.append(helper.make_node(_one(g, ("ConstantOfShape", "Range")), ["many"] * 1, ["made"]))
    if model.graph.node[-1].op_type == "Range":
        model.graph.node[-1].input[:] = ["many", "many", "many"]
    model.graph.node.append(helper.make_node("Neg", ["made"], ["read"]))
    model.graph.output.append(helper.make_tensor_value_info("read", TensorProto.FLOAT, [None]))


_CHANGES: tuple[Callable[[Random, ModelProto], None], ...] = (
    _huge_shape,
    _huge_weight,
    _external,
    _duplicate_name,
    _cycle,
    _dangling,
    _no_weight,
    _versions,
    _empty,
    _nested,
    _recursive,
    _enormous,
)
