"""Attention under constant masks on one GPU, ours beside torch and onnxruntime: see :mod:`tools.bench.attention.__main__`."""
