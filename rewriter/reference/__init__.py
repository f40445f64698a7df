"""Numeric comparison: inputs to test on, the float64 reference for them, and the distance of an output from it.

Names are taken from their modules when they are first asked for: who needs one imports no other module.
"""

from mugraph.starting import late_names

_MODULES = {
    "comparison": ("INFINITE", "Error", "compare", "compare_each", "identical", "worst"),
    "declared": ("without_false_claims",),
    "evaluation": (
        "Evaluated",
        "References",
        "decided_outputs",
        "is_quantized",
        "reference_outputs",
        "reference_run",
        "rounding_decisions",
    ),
    "input_error": ("InputError",),
    "inputs": ("bind_sizes", "check_data", "check_memory", "random_inputs", "sizes_that_run", "unheld"),
    "nodes": ("NoReference", "NoRoom", "bind_shape"),
    "observed": ("observed_sizes",),
    "repeats": ("few_parts", "keeps_parts_apart"),
    "uses": ("choices",),
}
__getattr__ = late_names(__name__, _MODULES)

__all__ = sorted(name for names in _MODULES.values() for name in names)
