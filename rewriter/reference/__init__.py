"""Numeric comparison: inputs to test on, the float64 reference for them, and the distance of an output from it."""

from rewriter.reference.comparison import INFINITE, Error, compare, worst
from rewriter.reference.evaluation import Evaluated, NoReference, is_quantized, reference_outputs
from rewriter.reference.inputs import InputError, bind_sizes, check_data, random_inputs

__all__ = [
    "INFINITE",
    "Error",
    "Evaluated",
    "InputError",
    "NoReference",
    "bind_sizes",
    "check_data",
    "compare",
    "is_quantized",
    "random_inputs",
    "reference_outputs",
    "worst",
]
