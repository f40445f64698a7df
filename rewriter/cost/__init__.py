"""What a candidate costs: operator times measured in the runtime that will run the model."""

from rewriter.cost.model import CostModel, Signature
from rewriter.cost.store import ProfileError, ProfileStore

__all__ = ["CostModel", "ProfileError", "ProfileStore", "Signature"]
