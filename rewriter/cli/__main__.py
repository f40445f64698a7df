"""``python -m rewriter.cli`` is the command ``onnx-superopt``."""

from rewriter.cli import optimize_command

optimize_command()
