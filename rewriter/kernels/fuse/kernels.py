"""Kernels of fusable sets, as rules: built for sizes that are symbols where that is possible, tested, and specialised.

The sizes of a set, those of its types and those in its attributes, are replaced by symbols
(:mod:`rewriter.kernels.fuse.sizes`). The kernel that is built of that is tested at small sizes, and may be a rule for other
models, too; the kernel that a model gets is the same with its sizes put back, so that the compiler knows them. What is not proved
for all sizes (:mod:`rules_db.trust.formulas.proof`) is tested at the model's own, too.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from mugraph.blocks.block import Kernel
from mugraph.blocks.sizes import specialised
from mugraph.terms.term import Term, walk
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.fusable import FusableSet
from rewriter.kernels.fuse.lower import lower, shared_heads
from rewriter.kernels.fuse.scope import PLAIN, Form
from rewriter.kernels.fuse.sizes import VARIANTS, generalised, untold
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import LEAST_TESTS, interpret, kernel_of_rule, kernel_rule
from rules_db.trust.rule import Rule

__all__ = ["Built", "KernelBuilder"]


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel built of a fusable set.

    Attributes:
        rule: set and kernel with the model's sizes.
        general: the kernel with symbols for sizes, as it was tested; the same where there are none to find.
    """

    rule: Rule
    general: Kernel


class KernelBuilder:
    """Builds and tests kernels; what was built once, of a look, is not built again.

    A kernel that is proved is tested where it is about to be used (:meth:`confirm`), any other as it is built.
    """

    def __init__(self) -> None:
        self._built: dict[tuple[object, ...], Built | str] = {}
        self._tested: dict[bytes, str | None] = {}
        self._untested: dict[bytes, Kernel] = {}
        self._sources: dict[str, tuple[FusableSet, Form]] = {}

    def build(self, fusable: FusableSet, form: Form = PLAIN, *, proved: bool = False) -> Built:
        """The kernel of a fusable set.

        Args:
            proved: only one that is proved for all sizes; else tests will do.

        Raises:
            NotFusable: there is none; the message is the reason.
        """
        key = (fusable.key, form, proved)
        if key not in self._built:
            try:
                built = self._built[key] = self._build(fusable, form, proved)
                self._sources.setdefault(built.rule.id, (fusable, form))
            except NotFusable as reason:
                self._built[key] = str(reason)
        result = self._built[key]
        if isinstance(result, str):
            raise NotFusable(result)
        return result

    def _build(self, fusable: FusableSet, form: Form, proved: bool) -> Built:
        if any(0 in type_.shape for type_ in fusable.types.values()):
            raise NotFusable("a dimension without entries")
        built = self._lowered(fusable, form, proved)
        kernel = kernel_of_rule(built.rule)
        if kernel is None or kernel.is_empty:
            raise NotFusable("a part of a dimension without entries")
        return built

    def _lowered(self, fusable: FusableSet, form: Form, proved: bool) -> Built:
        """The kernel of the most general sizes, but for heads that share keys: these are together where there is one query."""
        apart: Built | None = None
        for variant in VARIANTS:
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
                    apart = apart or self._built_of(sized, kernel, proved)
                elif (built := self._built_of(sized, kernel, proved)) is not None:
                    return built
        if apart is not None:
            return apart
        kernel = lower(_name(fusable.terms), fusable.types, _outputs(fusable.terms), form)
        built = self._built_of(kernel, kernel, proved)
        if built is None:
            raise NotFusable(f"kernel {kernel.name} is not proved for all sizes")
        return built

    def _built_of(self, sized: Kernel, general: Kernel, proved: bool) -> Built | None:
        """A kernel and what it is made of, proved or tested; ``None`` where it has to be proved and is not."""
        if why_not_proved(general) is None:
            self._untested[sized.digest] = general
        elif proved:
            return None
        else:
            self.test(general)
            self.test(sized)
        return Built(kernel_rule(sized, {}, general=general), general)

    def stored(self, rule: Rule) -> Rule | None:
        """The rule for other models behind one that was built here for a model's sizes."""
        source = self._sources.get(rule.id)
        return None if source is None else self.general(*source)

    def general(self, fusable: FusableSet, form: Form = PLAIN) -> Rule:
        """The rule for other models: with symbols for sizes, where a place that it matches tells them."""
        built = self.build(fusable, form)
        general = kernel_rule(built.general, {})
        return built.rule if untold(general.source, general.types) else general

    def confirm(self, kernel: Kernel) -> None:
        """Tests a kernel that was built here and only proved so far. Raises :class:`NotFusable` where it is wrong."""
        general = self._untested.pop(kernel.digest, None)
        if general is not None:
            self.test(general)

    def test(self, kernel: Kernel) -> None:
        """Raises :class:`NotFusable` where a kernel does not compute its body."""
        if kernel.digest not in self._tested:
            self._tested[kernel.digest] = interpret(kernel, LEAST_TESTS, 0)
        problem = self._tested[kernel.digest]
        if problem:
            raise NotFusable(f"kernel {kernel.name} is wrong or cannot be tested: {problem}")


def _outputs(terms: tuple[Term, ...]) -> list[tuple[str, Term]]:
    return [(f"y{i}", term) for i, term in enumerate(terms)]


def _name(terms: tuple[Term, ...]) -> str:
    """The kernel's name: the operators that do the work, in order."""
    kept = ("MatMul", "Gemm", "Softmax", "Normalization", "Attention", "Reduce", "Gelu", "Sigmoid", "Relu", "Tanh", "Erf")
    ops = [term.op for term in walk(terms) if any(word in term.op for word in kept)]
    short = [op for op, _ in itertools.groupby(ops)][:5]
    words = [op.replace("Normalization", "norm").lower() for op in short]
    return "_".join(words) or "elementwise"
