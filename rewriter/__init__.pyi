from rewriter.run.optimize import optimize
from rewriter.run.options import Options
from rewriter.run.outcome import Outcome

__all__ = ["Options", "Outcome", "optimize"]
