"""A process that infers the shapes of one model, for :func:`mugraph.limited.run_limited`; it imports nothing of the project."""

from __future__ import annotations

import sys

import onnx

if sys.platform != "win32":
    import resource


def main() -> None:
    """Reads a model from the standard input, and writes it with its types to the standard output."""
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    model = onnx.ModelProto.FromString(sys.stdin.buffer.read())
    sys.stdout.buffer.write(onnx.shape_inference.infer_shapes(model, data_prop=True).SerializeToString())


if __name__ == "__main__":
    main()
