"""Attacks on the optimiser by material that nobody chose: ONNX's conformance cases, random models, damaged files.

``python -m tools.fuzz conformance|models|files`` (docs/fuzzing.md). Every attack is a numbered list of cases; case ``k`` of seed
``s`` is the same on every machine, and can be run alone.
"""
