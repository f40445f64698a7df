"""Cleaning: a model without what no run needs, made to compute the same in onnxruntime.

Names come first (:mod:`.names`), so that a name means one value everywhere; then constants (:mod:`.constants`) and what is
computed from them alone (:mod:`.folding`); then values that are the same (:mod:`.sharing`) and what nobody reads
(:mod:`.leftovers`).
"""

from mugraph.onnx.cleaning.folding import Evaluate
from mugraph.onnx.cleaning.steps import Cleaned, Depth, clean

__all__ = ["Cleaned", "Depth", "Evaluate", "clean"]
