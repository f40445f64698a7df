"""Evidence for rules whose target is a graph-defined kernel: its block graphs, interpreted exactly, compute its body.

The body of the kernel is the source of the rule, term for term. What is left to show is that the block graphs compute the body:
grid, loop, views, accumulators and all. They are evaluated tile by tile (:mod:`mugraph.blocks.interp`) on random entries, in
pairs of finite fields and in floats, at several sizes of the rule's symbols, ragged ones among them, for several tile sizes and
parts of the loop, and compared with the body's values entry by entry.

Fields say nothing of rounding, floats little of cases; tests are no proof for all sizes. Where formulas of entries prove that
(:mod:`rules_db.trust.formulas.proof`), the certificate says so and the checker does the proof again; an audit repeats the tests,
too. What is not proved is tested at sizes of 1 and at one and two past every constant in the block graphs, too, one symbol after
the other: a graph that does something else beyond row 63 has a 63 in it. Where the body asks for infinities (IsInf), every
second test in floats has some.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.interp import evaluate_body, evaluate_kernel
from mugraph.blocks.operator import KERNEL, kernel_of, kernel_terms
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.sizes import specialised
from mugraph.blocks.statements import Compute, Extent, InvalidBlock
from mugraph.blocks.validity import check_kernel
from mugraph.domains.base import WHOLE_NUMBERS, Array, Unsupported
from mugraph.domains.field import FieldArray, FiniteField, ZeroDivision
from mugraph.domains.real import Real
from mugraph.terms.shape import DataType, Dim, ShapeError, SymDim, TensorType, concrete
from mugraph.terms.term import substitute, walk
from rules_db.trust.certificate import Certificate, Interpretation
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.rule import FloatClass, Rule, Side

__all__ = [
    "LEAST_TESTS",
    "Residues",
    "calls_one_kernel",
    "has_small_sizes",
    "interpret",
    "kernel_of_rule",
    "kernel_rule",
    "random_operand",
    "repeat_interpretation",
]

LEAST_TESTS = 3
_SIZES = ((2, 3, 5, 2, 3, 2, 3), (3, 2, 2, 3, 2, 3, 2), (5, 3, 2, 2, 3, 3, 2))
_TILES = (4, 2, 8)
_DRAWS = 12
_PLACES = 6
"""Draws of whole numbers beside floats: each says of few places what is on which side of them."""
_FEW_ENTRIES, _MOST_ENTRIES = 1 << 15, 1 << 20
"""Of all inputs and outputs together: beyond them an interpretation takes minutes."""
_MOST_CONSTANTS = 24
"""That sizes are chosen by, times the symbols: a graph with more has to be proved."""
_TOLERANCE = 1e-9
"""Relative to the largest entry, in double precision."""


class Residues(FiniteField):
    """A pair of fields that has no exponential of a number without its second residue, such as a root.

    Elsewhere such an exponential is an opaque function. A kernel subtracts the maximum of a row from its scores, which changes no
    weight of a softmax and every value of an opaque function: a kernel that is proved may do so. Of one that is not, floats alone
    would have to tell whether it does so rightly, and where they are not finite they tell nothing: it is refused.
    """

    def exp(self, a: FieldArray) -> FieldArray:
        if a.q is None:
            raise Unsupported("an exponential of a number without its second residue")
        result: FieldArray = super().exp(a)
        return result


def kernel_of_rule(rule: Rule) -> Kernel | None:
    """The kernel that a rule's target is; ``None`` where it is anything else."""
    return kernel_of(rule.target[0].attrs) if calls_one_kernel(rule.target) else None


def calls_one_kernel(target: Side) -> bool:
    """Whether the target of a rule is one kernel, all its outputs in order; it may be named by its digest alone."""
    calls = {(term.attrs, term.inputs) for term in target if term.op == KERNEL}
    return len(calls) == 1 and all(term.op == KERNEL and term.out == i for i, term in enumerate(target))


def kernel_rule(kernel: Kernel, provenance: Mapping[str, str], seed: int = 0, general: Kernel | None = None) -> Rule:
    """The multi-level rule whose source is a kernel's body and whose target is the kernel.

    Its certificate says that it is proved where it is; nothing is tested here.

    Args:
        general: the kernel of which this one has some sizes put in: the proof of that one is a proof of this one.
    """
    types = {tensor.name: tensor.type for tensor in kernel.inputs}
    certificate = Certificate((), interpreted=Interpretation(LEAST_TESTS, seed, why_not_proved(general or kernel) is None))
    provenance = {"group": "kernels", **provenance}
    return Rule(kernel.body, kernel_terms(kernel), types, (), FloatClass.REASSOCIATES, certificate, provenance)


def repeat_interpretation(rule: Rule, told: Interpretation, *, tests_proved: bool) -> list[str]:
    """Repeats the tests, or the proof; returns what is wrong, nothing where the evidence holds.

    Args:
        tests_proved: what is proved is tested, too, which takes a second, at sizes at which it does not take minutes.
    """
    if rule.certificate.instances or rule.attrs or rule.conditions:
        return ["an interpretation says nothing of conditions, properties and attribute variables"]
    if told.tests < LEAST_TESTS:
        return [f"{told.tests} tests are too few: at least {LEAST_TESTS}"]
    kernel = kernel_of_rule(rule)
    if kernel is None:
        return ["an interpretation speaks of a target that is one graph-defined kernel, all its outputs in order"]
    try:
        check_kernel(kernel)
    except InvalidBlock as reason:
        return [str(reason)]
    operands = rule.target[0].inputs
    names = [tensor.name for tensor in kernel.inputs]
    if len(operands) != len(names) or any(not operand.is_var for operand in operands):
        return ["the kernel is not applied to the rule's variables"]
    renamed = {name: operand for name, operand in zip(names, operands, strict=True)}
    if tuple(substitute(term, renamed) for term in kernel.body) != rule.source:
        return ["the kernel's body is not the source"]
    if any(rule.types[operand.name] != tensor.type for operand, tensor in zip(operands, kernel.inputs, strict=True)):
        return ["the kernel's inputs are not of the types of the rule's variables"]
    unproved = why_not_proved(kernel) if told.proved else None
    if unproved is not None:
        return [f"the block graphs are not proved to compute the body for all sizes: {unproved}"]
    if told.proved and not (tests_proved and has_small_sizes(kernel)):
        return []  # a proof does not rest on tests
    problem = interpret(kernel, told.tests, told.seed)
    return [problem] if problem else []


def interpret(kernel: Kernel, tests: int, seed: int) -> str | None:
    """The error of a kernel's block graphs, in words; ``None`` where they compute its body in every test.

    Args:
        kernel: dimension symbols in it take several small values, and those past its constants where it is not proved.
        tests: evaluations in finite fields, and as many in floats.
        seed: of all random choices.
    """
    evaluated, asks = 0, any(part.op == "IsInf" for part in walk(kernel.body))
    is_proved = why_not_proved(kernel) is None
    further, field = ([], Residues) if is_proved else (_past_constants(kernel), FiniteField)
    if len(further) > 2 * _MOST_CONSTANTS + len(kernel.symbols) + 1:
        return f"more than {_MOST_CONSTANTS} constants times symbols, which are too many to test one past each"
    for test in range(tests + len(further)):
        sized = _sized(kernel, test) if test < tests else specialised(kernel, further[test - tests])
        if sized is None or _entries(sized) > _MOST_ENTRIES:
            return f"more than {_MOST_ENTRIES} entries, which are too many to interpret"
        shapes = {t.name: _concrete(t.type) for t in sized.inputs}
        total = _entries(sized)
        for domain in (field(seed + test, prime=test), Real()):
            generator = np.random.default_rng([seed, test])
            schedules = [_schedule(block, test, total) for block in sized.blocks]
            try:
                problem = _compare(sized, domain, generator, shapes, schedules, asks and test % 2 == 1)
            except Unsupported:
                continue
            except (InvalidBlock, ShapeError) as reason:
                return str(reason)
            if problem:
                where = ", ".join(f"{t.name} {t.type}" for t in sized.inputs)
                return f"{problem} in test {test} at {where}"
            evaluated += 1
    return None if evaluated >= tests else "its operators are not defined in enough domains"


def _past_constants(kernel: Kernel) -> list[dict[str, int]]:
    """Sizes at which a graph shows that it does something else below or past a constant: symbols of 1, one and two past each."""
    constants = {abs(number) for dim in kernel.dims for number in _numbers(dim)}
    if any(isinstance(statement, Extent) for block in kernel.blocks for statement in block.statements):
        terms = [s.term for block in kernel.blocks for s in block.statements if isinstance(s, Compute)]
        values = [part.attr("value") for part in walk(terms) if part.op == "Const"]
        constants |= {abs(int(value)) for value in values if math.isfinite(value) and value == int(value)}
    found: list[dict[str, int]] = [{**dict.fromkeys(kernel.symbols, 2), name: 1} for name in kernel.symbols]
    found += [dict.fromkeys(kernel.symbols, 1)] if kernel.symbols else []
    for constant in sorted(constants - {0, 1}):
        for name in kernel.symbols:
            found += [{**dict.fromkeys(kernel.symbols, 2), name: constant + past} for past in (1, 2)]
    return found


def _numbers(dim: Dim) -> list[int]:
    """The numbers in a size."""
    return [coefficient for _, coefficient in dim.terms] if isinstance(dim, SymDim) else [dim]


def _sized(kernel: Kernel, test: int) -> Kernel | None:
    """The kernel with small sizes for its symbols, unequal ones as far as they stay small."""
    for row in (_SIZES[test % len(_SIZES)], (3, 2, 2), (2,)):
        sized = specialised(kernel, {name: row[i % len(row)] for i, name in enumerate(kernel.symbols)})
        if _entries(sized) <= (_FEW_ENTRIES if len(row) > 1 else _MOST_ENTRIES):
            return sized
    return None


def has_small_sizes(kernel: Kernel) -> bool:
    """Whether a kernel can be interpreted at sizes at which that does not take minutes."""
    return _sized(kernel, 0) is not None


def _entries(kernel: Kernel) -> int:
    return sum(int(np.prod(_concrete(t.type))) for t in (*kernel.inputs, *kernel.outputs))


def _concrete(type_: TensorType) -> tuple[int, ...]:
    shape = concrete(type_.shape)
    assert shape is not None, type_
    return shape


def _schedule(block: Block, test: int, total: int) -> Schedule:
    """Tiles that divide few sizes; larger ones where the sizes are a model's own."""
    tile = _TILES[test % len(_TILES)] * (1 if total < 1 << 14 else 32)
    cut = (*block.grid, *((block.loop,) if block.loop is not None else ()))
    stores_in_loop = any(block.phases[store.value] == "loop" for store in block.stores)
    return Schedule(tuple((axis, tile) for axis in cut), 2 if test % 2 and block.accumulators and not stores_in_loop else 1)


def _compare(
    kernel: Kernel,
    domain: FiniteField | Real,
    generator: np.random.Generator,
    shapes: Mapping[str, tuple[int, ...]],
    schedules: Sequence[Schedule],
    infinite: bool,
) -> str | None:
    largest = max((size for shape in shapes.values() for size in shape), default=1)
    places = isinstance(domain, Real) and any(t.type.dtype in WHOLE_NUMBERS for t in kernel.inputs)
    left = _PLACES if places else 1
    for _ in range(_DRAWS):
        inputs = {t.name: random_operand(domain, generator, t.type, shapes[t.name], largest) for t in kernel.inputs}
        if infinite and isinstance(domain, Real):
            _make_infinite(inputs, generator)
        try:
            with np.errstate(all="ignore"):
                wanted = evaluate_body(kernel, domain, inputs)
                results = evaluate_kernel(kernel, domain, inputs, schedules)
        except ZeroDivision:
            continue
        for tensor, a, b in zip(kernel.outputs, wanted, results, strict=True):
            if not _equal(a, b):
                return f"{tensor.name} differs in {'floats' if isinstance(domain, Real) else f'the field of {domain.p}'}"
        left -= 1
        if not left:
            return None
    raise Unsupported("a residue to divide by was zero in every draw")


def _make_infinite(inputs: Mapping[str, Array], generator: np.random.Generator) -> None:
    """Makes one entry of each tensor of floats infinite, for kernels that test for infinities."""
    for value in inputs.values():
        if value.dtype != bool and value.size:
            value[np.unravel_index(generator.integers(value.size), value.shape)] = generator.choice([-np.inf, np.inf])


def random_operand(
    domain: FiniteField | Real, generator: np.random.Generator, type_: TensorType, shape: tuple[int, ...], largest: int
) -> Array:
    """Random entries of an input: normal floats or residues, truth values most of which hold, a few different whole numbers.

    Whole numbers are residues in a field, where they have no order. Beside floats they are places of a tensor, differences of
    such, or one past the last: kernels compare them with these.

    Args:
        largest: the size of the longest dimension.
    """
    if type_.dtype == DataType.BOOL:
        return generator.random(shape) < 0.7
    if type_.dtype in WHOLE_NUMBERS:
        if isinstance(domain, Real):
            return generator.integers(-largest if generator.random() < 0.5 else 0, largest + 2, shape)
        which = generator.integers(0, 3, shape)  # some are equal
        return domain.move(lambda numbers: numbers[which], domain.random(generator, (3,)))
    return generator.standard_normal(shape) if isinstance(domain, Real) else domain.random(generator, shape)


def _equal(a: Array, b: Array) -> bool:
    if isinstance(a, FieldArray) or isinstance(b, FieldArray):
        return isinstance(a, FieldArray) and isinstance(b, FieldArray) and bool(np.array_equal(a.p, b.p))
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.shape != second.shape or not np.array_equal(np.isfinite(first), np.isfinite(second)):
        return False
    finite = np.isfinite(first)
    scale = max(1.0, float(np.max(np.abs(first[finite]), initial=0.0)))
    return bool(np.max(np.abs(first[finite] - second[finite]), initial=0.0) <= _TOLERANCE * scale)
