"""Numeric comparison: inputs to test on, the float64 reference for them, and the distance of an output from it."""

from rewriter.reference.comparison import Error, compare, worst
from rewriter.reference.evaluation import Evaluated, References, reference_outputs, references
from rewriter.reference.inputs import InputError, bind_sizes, check_data, random_inputs
from rewriter.reference.nodes import NoReference

__all__ = [
    "Error",
    "Evaluated",
    "InputError",
    "NoReference",
    "References",
    "bind_sizes",
    "check_data",
    "compare",
    "random_inputs",
    "reference_outputs",
    "references",
    "worst",
]
