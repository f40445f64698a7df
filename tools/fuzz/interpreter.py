"""Generated kernels in Triton's interpreter, in memory that ends where tensors end; sizes as the run-time library has them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.sizes import bound_sizes
from mugraph.terms.dtypes import as_stored
from mugraph.terms.shape import DataType, evaluate_dim
from rewriter.kernels.triton import generate
from rewriter.runtime.plan import Argument, Expression

__all__ = ["Interpreter", "InterpreterFailed"]


class InterpreterFailed(Exception):
    """The interpreter raised, or its process ended; the message says what, with the source."""


class Interpreter:
    """A process with Triton's interpreter."""

    def __init__(self) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
        script = Path(__file__).with_name("triton_server.py")
        self.process = subprocess.Popen(
            [sys.executable, "-P", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)

    def run(
        self,
        kernel: Kernel,
        schedules: Sequence[Schedule],
        inputs: Mapping[str, np.ndarray],
        shared: Mapping[int, int] = MappingProxyType({}),
    ) -> list[np.ndarray]:
        """The kernel's outputs for concrete inputs. Raises InterpreterFailed.

        Args:
            shared: outputs that are bound to the buffer of an input.
        """
        source = generate(kernel, schedules)
        shapes = [inputs[t.name].shape for t in kernel.inputs]
        sizes = bound_sizes(kernel, {t.name: inputs[t.name].shape for t in kernel.inputs})
        memory: dict[str, np.ndarray] = {}
        names: dict[Argument, str] = {}
        for i, tensor in enumerate(kernel.inputs):
            array = inputs[tensor.name]
            stored = np.ascontiguousarray(as_stored(array))
            memory[f"in{i}"] = stored.view(np.int8) if array.dtype == bool else stored
            names[Argument.input(i)] = f"in{i}"
        for i, tensor in enumerate(kernel.outputs):
            shape = [evaluate_dim(dim, sizes) for dim in tensor.type.shape]
            dtype = np.dtype(np.int8) if tensor.type.dtype == DataType.BOOL else tensor.type.dtype.numpy()
            memory[f"out{i}"] = np.full(shape, 77, dtype)
            names[Argument.output(i)] = f"in{shared[i]}" if i in shared else f"out{i}"
        for i, size in enumerate(source.scratch):
            dtype = kernel.scratch[i].type.dtype.numpy() if i < len(kernel.scratch) else np.dtype(np.float32)
            memory[f"scratch{i}"] = np.full(Expression.of(size).value(shapes) // dtype.itemsize, np.nan, dtype)
            names[Argument.scratch(i)] = f"scratch{i}"
        for i, table in enumerate(source.tables):
            memory[f"table{i}"] = np.array(table.view(np.int8) if table.dtype == bool else table)
            names[Argument.input(len(kernel.inputs) + i)] = f"table{i}"
        launches, bound = [], [(place, out) for out, place in shared.items()]
        for launch in source.launches:
            grid = tuple(Expression.of(extent).value(shapes, bound) for extent in launch.grid)
            arguments: list[str | int] = []
            for argument in launch.arguments:
                arguments.append(names[argument] if argument in names else Expression(argument.packed[2:]).value(shapes, bound))
            launches.append((launch.function, grid, arguments))
        reply = self.execute(source.text, launches, memory)
        return [reply[names[Argument.output(i)]] for i in range(len(kernel.outputs))]

    def execute(
        self, text: str, launches: Sequence[tuple[str, tuple[int, ...], Sequence[str | int]]], memory: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The memory after some launches of a source; an argument is a name in it or a number. Raises InterpreterFailed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            pickle.dump((text, launches, memory), self.process.stdin)
            self.process.stdin.flush()
            reply: dict[str, np.ndarray] | str = pickle.load(self.process.stdout)
        except (EOFError, BrokenPipeError):
            raise InterpreterFailed(f"its process ended: {self.process.wait()}\n{text}") from None
        if isinstance(reply, str):
            raise InterpreterFailed(f"{reply}\n{text}")
        return reply
