"""The commands ``onnx-superopt`` and ``superopt-costs``."""
