"""Kernels of fusable sets, as rules: built for sizes that are symbols where that is possible, tested, and specialised.

The sizes of a set, those of its types and those in its attributes, are replaced by symbols
(:mod:`rewriter.kernels.fuse.sizes`). The kernel that is built of that is tested at small sizes, and may be a rule for other
models, too; the kernel that a model gets is the same with its sizes put back, so that the compiler knows them. What is not proved
for all sizes (:mod:`rules_db.trust.formulas.proof`) is tested at the model's own, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import kernel_terms
from mugraph.blocks.sizes import specialised
from mugraph.terms.shape import DataType
from mugraph.terms.term import Term, walk
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.fusable import FusableSet
from rewriter.kernels.fuse.lower import lower, shared_heads
from rewriter.kernels.fuse.scope import PLAIN, Form
from rewriter.kernels.fuse.sizes import VARIANTS, counted_heads, generalised, untold
from rules_db.trust.certificate import Certificate
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import LEAST_TESTS, has_small_sizes, interpret, kernel_rule
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["Built", "DraftKernel", "KernelBuilder"]


@dataclass(frozen=True)
class DraftKernel:
    """A kernel of a fusable set of which nothing is known yet: neither proved nor tested.

    Attributes:
        kernel: with the model's sizes.
        general: with symbols for sizes; the same where there are none to find.
    """

    kernel: Kernel
    general: Kernel

    @cached_property
    def rule(self) -> Rule:
        """The rule that it would be, which no evidence stands behind: it can be matched and priced, and no more."""
        types = {tensor.name: tensor.type for tensor in self.kernel.inputs}
        return Rule(self.kernel.body, kernel_terms(self.kernel), types, (), FloatClass.REASSOCIATES, Certificate(()))


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel built of a fusable set.

    Attributes:
        rule: set and kernel with the model's sizes.
        general: the kernel with symbols for sizes, as it was tested; the same where there are none to find.
    """

    rule: Rule
    general: Kernel


_Found = TypeVar("_Found", DraftKernel, Built)


class KernelBuilder:
    """Builds and tests kernels; what was built once, of a look, is not built again.

    Most kernels save nothing, and a proof takes longer than a price: a draft (:meth:`draft`) is proved or tested by whoever wants
    it (:meth:`build`). A kernel that is proved is tested where it is about to be used (:meth:`confirm`).
    """

    def __init__(self) -> None:
        self._drafts: dict[tuple[object, ...], DraftKernel | str] = {}
        self._built: dict[tuple[object, ...], Built | str] = {}
        self._tested: dict[bytes, str | None] = {}
        self._untested: dict[bytes, Kernel] = {}
        self._of_rule: dict[str, Built] = {}

    def draft(self, fusable: FusableSet, form: Form = PLAIN) -> DraftKernel:
        """The kernel of a fusable set, neither proved nor tested. Raises :class:`NotFusable`."""
        key = (fusable.key, form)
        if key not in self._drafts:
            try:
                self._drafts[key] = _of_entries(next(_variants(fusable, form)))
            except NotFusable as reason:
                self._drafts[key] = str(reason)
        return _given(self._drafts[key])

    def build(self, fusable: FusableSet, form: Form = PLAIN, *, proved: bool = False) -> Built:
        """The kernel of a fusable set, proved or tested.

        Args:
            proved: the first of its variants that is proved for all sizes; else tests will do.

        Raises:
            NotFusable: there is none; the message is the reason.
        """
        key = (fusable.key, form, proved)
        if key not in self._built:
            try:
                draft = _of_entries(_proved(_variants(fusable, form))) if proved else self.draft(fusable, form)
                built = self._built[key] = self._certified(draft)
                self._of_rule.setdefault(built.rule.id, built)
            except NotFusable as reason:
                self._built[key] = str(reason)
        return _given(self._built[key])

    def _certified(self, draft: DraftKernel) -> Built:
        """A draft that is proved, or else tested. Raises :class:`NotFusable` where tests say that it is wrong."""
        if why_not_proved(draft.general) is None:
            self._untested[draft.kernel.digest] = draft.general
        else:
            self.test(draft.kernel)  # first, since it says at once where there are more entries than can be tested
            self.test(draft.general)
        return Built(kernel_rule(draft.kernel, {}, general=draft.general), draft.general)

    def stored(self, rule: Rule) -> Rule | None:
        """The rule for other models behind one that was built here for a model's sizes."""
        built = self._of_rule.get(rule.id)
        return None if built is None else _general(built)

    def general(self, fusable: FusableSet, form: Form = PLAIN) -> Rule:
        """The rule for other models: with symbols for sizes, where a place that it matches tells them."""
        return _general(self.build(fusable, form))

    def confirm(self, kernel: Kernel) -> None:
        """Tests a kernel that was built here and only proved so far. Raises :class:`NotFusable` where it is wrong.

        A proof does not rest on tests, and a kernel whose sizes are all too large for them is not tested, unless it reads truth
        values: of rows in which these hide everything a proof says nothing.
        """
        general = self._untested.get(kernel.digest)
        if general is not None and (has_small_sizes(general) or any(t.type.dtype == DataType.BOOL for t in general.inputs)):
            self.test(general)  # which the end of the time may cut short: until it says that all is well nothing is known

    def test(self, kernel: Kernel) -> None:
        """Raises :class:`NotFusable` where a kernel does not compute its body."""
        if kernel.digest not in self._tested:
            self._tested[kernel.digest] = interpret(kernel, LEAST_TESTS, 0)
        problem = self._tested[kernel.digest]
        if problem:
            raise NotFusable(f"kernel {kernel.name} is left out: {problem}")


def _general(built: Built) -> Rule:
    general = kernel_rule(built.general, {})
    return built.rule if untold(general.source, general.types) else general


def _given(found: _Found | str) -> _Found:
    """Raises NotFusable for a reason why there is nothing."""
    if isinstance(found, str):
        raise NotFusable(found)
    return found


def _variants(fusable: FusableSet, form: Form) -> Iterator[DraftKernel]:
    """The kernels of a set, that of the most general sizes first, but for heads that share keys: these are together where there
    is one query. The last has the set's own sizes. Raises NotFusable where that is none."""
    if any(0 in type_.shape for type_ in fusable.types.values()):
        raise NotFusable("a dimension without entries")
    apart: list[DraftKernel] = []
    for variant in VARIANTS:
        if variant.counted and not counted_heads(fusable.terms):
            continue  # it is as another
        general = generalised(fusable.terms, fusable.types, variant)
        if general is None:
            continue
        try:
            kernel = lower(_name(general.terms), general.types, _outputs(general.terms), form)
            sized = specialised(kernel, general.sizes)
        except NotFusable:
            continue
        if sized.body == fusable.terms and all(fusable.types[t.name] == t.type for t in sized.inputs):
            if any(shared_heads(block) is not None for block in sized.blocks):
                apart.append(DraftKernel(sized, kernel))
            else:
                yield DraftKernel(sized, kernel)
    yield from apart
    kernel = lower(_name(fusable.terms), fusable.types, _outputs(fusable.terms), form)
    yield DraftKernel(kernel, kernel)


def _proved(variants: Iterator[DraftKernel]) -> DraftKernel:
    """The first that is proved for all sizes. Raises NotFusable where none is."""
    for draft in variants:
        if why_not_proved(draft.general) is None:
            return draft
    raise NotFusable(f"kernel {draft.kernel.name} is not proved for all sizes")


def _of_entries(draft: DraftKernel) -> DraftKernel:
    """Raises NotFusable for one that computes nothing."""
    if draft.kernel.is_empty:
        raise NotFusable("a part of a dimension without entries")
    return draft


def _outputs(terms: tuple[Term, ...]) -> list[tuple[str, Term]]:
    return [(f"y{i}", term) for i, term in enumerate(terms)]


def _name(terms: tuple[Term, ...]) -> str:
    """The kernel's name: the operators that do the work, in order."""
    kept = ("MatMul", "Gemm", "Softmax", "Normalization", "Attention", "Reduce", "Gelu", "Sigmoid", "Relu", "Tanh", "Erf")
    ops = [term.op for term in walk(terms) if any(word in term.op for word in kept)]
    short = [op for op, _ in itertools.groupby(ops)][:5]
    words = [op.replace("Normalization", "norm").lower() for op in short]
    return "_".join(words) or "elementwise"
