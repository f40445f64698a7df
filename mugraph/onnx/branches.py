"""Ifs that always take one branch, since with the other one no run would succeed.

Exporters write ``If(rank(x) == 2)`` where the rank of ``x`` is itself that of another If's result. Such a condition is not known
from what computes it, but from what reads the result: an LSTM takes three dimensions, and fails on any other number, in kernels
as in its schema (:data:`mugraph.ops.support.RECURRENT`). A node that its graph's outputs need runs whenever the graph does. Where
it is ill-typed once an If of the same graph has taken a branch, every run that takes the branch ends in an error, and there is no
result that a rewritten model would have to repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import NodeProto, TensorProto, helper
from onnx.shape_inference import InferenceError, infer_node_outputs

from mugraph.onnx.bodies import BRANCHES
from mugraph.onnx.calls import DEFAULT_DOMAINS
from mugraph.onnx.symbols import Restriction, type_proto
from mugraph.terms.shape import TensorType

__all__ = ["BranchTrials", "IllTyped", "TakenBranches", "UndecidedIf", "check_typed", "if_name"]

_TRIED_NODES = 1 << 14
"""Nodes that are read at most to try branches: a second or two."""


class IllTyped(Exception):
    """A node that fails on inputs of its types; the message says why."""


@dataclass(frozen=True, slots=True)
class TakenBranches:
    """What is known of Ifs whose condition is not known.

    Attributes:
        attributes: name of an If (:func:`if_name`) to the branch that it takes in every run that succeeds.
        restrictions: what that says of the runs.
    """

    attributes: Mapping[str, str] = field(default_factory=dict)
    restrictions: tuple[Restriction, ...] = ()

    def supposing(self, name: str, attribute: str) -> TakenBranches:
        """Also that an If takes a branch."""
        return TakenBranches({**self.attributes, name: attribute}, self.restrictions)


@dataclass(frozen=True, slots=True)
class UndecidedIf:
    """An If whose results have another rank in each branch, and that runs whenever the graph does that it is in.

    Its condition rests on sizes alone: runs on inputs of the same sizes take the same branch.

    Attributes:
        name: of the If.
        scope: number of the body that it is in; 0 for the main graph.
    """

    name: str
    scope: int


Trial = Callable[[TakenBranches], Mapping[int, str]]
"""Reads a model under a supposition: the graphs in which a node that always runs is ill-typed, by number, each with the node."""


class BranchTrials:
    """Tries branches of Ifs.

    Args:
        nodes: of the model that is read for a trial.
        trial: reads it.
    """

    def __init__(self, nodes: int, trial: Trial) -> None:
        self._left, self._trial = _TRIED_NODES // (len(BRANCHES) * max(nodes, 1)), trial
        self._tried: set[str] = set()

    def decided(self, undecided: Sequence[UndecidedIf], known: TakenBranches) -> TakenBranches | None:
        """What is known once the first If is decided that can be; ``None`` where none can.

        Args:
            undecided: those whose graph is well-typed as far as is known.
        """
        for each in undecided:
            if each.name in self._tried or not self._left:
                continue
            self._tried.add(each.name)
            self._left -= 1
            failing = {a: self._trial(known.supposing(each.name, a)).get(each.scope) for a in BRANCHES}
            left = [attribute for attribute in BRANCHES if failing[attribute] is None]
            if len(left) == 1:
                node = next(node for node in failing.values() if node is not None)
                restriction = Restriction(node, f"the {left[0]} of '{each.name}'")
                taken = known.supposing(each.name, left[0])
                return TakenBranches(taken.attributes, (*known.restrictions, restriction))
        return None


def if_name(node: NodeProto) -> str:
    """The name of the first result of an If."""
    return next((name for name in node.output if name), "")


def check_typed(
    node: NodeProto, opset: int, types: Mapping[str, TensorType | None], constants: Mapping[str, TensorProto]
) -> None:
    """Asks onnx's schema of a node whether its inputs may have the types that they have.

    Args:
        node: of the default domain, without subgraphs.
        opset: version of that domain.
        types: of its inputs; nothing is asked where one is not known.
        constants: inputs whose entries are known.

    Raises:
        IllTyped: the node fails on them.
    """
    if any(node.domain not in DEFAULT_DOMAINS or types.get(name) is None for name in node.input if name):
        return
    given = {name: type_proto(type_) for name, type_ in types.items() if type_ is not None}
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
        infer_node_outputs(schema, node, given, dict(constants), opset_imports=[helper.make_opsetid("", opset)])
    except InferenceError as problem:
        raise IllTyped(" ".join(str(problem).split())) from None
    except (onnx.defs.SchemaError, onnx.checker.ValidationError, ValueError, RuntimeError):
        return
