from rewriter.reference.comparison import INFINITE, Error, compare, compare_each, identical, worst
from rewriter.reference.declared import without_false_claims
from rewriter.reference.evaluation import (
    Evaluated,
    References,
    decided_outputs,
    is_quantized,
    reference_outputs,
    reference_run,
    rounding_decisions,
)
from rewriter.reference.input_error import InputError
from rewriter.reference.inputs import bind_sizes, check_data, check_memory, random_inputs, sizes_that_run, unheld
from rewriter.reference.nodes import NoReference, NoRoom, bind_shape
from rewriter.reference.observed import observed_sizes
from rewriter.reference.repeats import few_parts, keeps_parts_apart
from rewriter.reference.uses import choices

__all__ = [
    "INFINITE",
    "Error",
    "Evaluated",
    "InputError",
    "NoReference",
    "NoRoom",
    "References",
    "bind_shape",
    "bind_sizes",
    "check_data",
    "check_memory",
    "choices",
    "compare",
    "compare_each",
    "decided_outputs",
    "few_parts",
    "identical",
    "is_quantized",
    "keeps_parts_apart",
    "observed_sizes",
    "random_inputs",
    "reference_outputs",
    "reference_run",
    "rounding_decisions",
    "sizes_that_run",
    "unheld",
    "without_false_claims",
    "worst",
]
