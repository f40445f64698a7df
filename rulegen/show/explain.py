"""Equations typed by hand: certified, refuted by a counterexample in numbers, or left open with advice; and proofs in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.real import Real
from mugraph.ops import get_operator
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, concrete
from mugraph.terms.term import Term, format_term, format_value, make, walk
from mugraph.terms.text import Parser, TextError
from rulegen.prove import Proof, Prover
from rulegen.prove.refute import assignments, specialise
from rulegen.prove.typings import Typing, infer_typing
from rules_db.trust.certificate import Certificate
from rules_db.trust.check import instantiate
from rules_db.trust.condition import Condition
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Side, Verdict, dim_symbols

__all__ = [
    "Difference",
    "EquationError",
    "Explanation",
    "differ",
    "explain",
    "in_words",
    "parse_equation",
    "parse_let",
    "proof_in_words",
    "typing_text",
]


class EquationError(ValueError):
    """An equation that cannot be read or typed; one line that says where and what to write."""


# Words


def in_words(condition: Condition) -> str:
    """The definition of the predicate with the condition's arguments for its parameters."""
    guard = condition.guard
    arguments = (repr(a) if isinstance(a, Term) else format_value(a) for a in condition.arguments)
    words = dict(zip(guard.parameters, arguments, strict=True))
    text = guard.words.replace("`", "")
    return re.sub(r"\b\w+\b", lambda found: words.get(found.group(), found.group()), text)


def proof_in_words(conditions: Sequence[Condition], certificate: Certificate, open_attrs: Sequence[str] = ()) -> list[str]:
    """Lines that say when a rule holds and why, one operator property after the other."""
    lines = []
    if conditions:
        lines.append("only if")
        lines += [f"  {condition}: {in_words(condition)}" for condition in conditions]
    tests = certificate.tested or certificate.interpreted
    if tests:
        return [*lines, f"because {tests.in_words()}."]
    lines.append("because, where each line is an operator property with terms for its variables,")
    axioms = load_axioms()
    for number, instance in enumerate(certificate.instances, 1):
        step = instantiate(instance, axioms, open_attrs)
        lines += [f"  {number}. {axioms[instance.axiom]}", f"     {format_term(step.left)}", f"     = {format_term(step.right)}"]
        lines += [f"     where {in_words(condition)}" for condition in step.conditions]
    lines.append("and equal operands give equal results, so that source and target are equal.")
    return lines


# Counterexamples


@dataclass(frozen=True)
class Difference:
    """Inputs for which two programs give different numbers.

    Attributes:
        inputs: values of the variables.
        output: which of the outputs differs.
        index: the first entry that does.
        left, right: that entry on both sides.
    """

    inputs: Mapping[str, np.ndarray]
    output: int
    index: tuple[int, ...]
    left: float
    right: float

    def as_json(self) -> dict[str, Any]:
        small = {name: value.tolist() for name, value in self.inputs.items() if value.size <= 64}
        return {
            "shapes": {name: list(value.shape) for name, value in self.inputs.items()},
            "output": self.output,
            "index": list(self.index),
            "source": self.left,
            "target": self.right,
            "inputs": small,
        }

    def __str__(self) -> str:
        shapes = ", ".join(f"{name}: {list(value.shape)}" for name, value in self.inputs.items())
        return f"with {shapes}, entry {list(self.index)} of output {self.output} is {self.left:g} and {self.right:g}"


_TOLERANCE = 1e-9
"""Relative to the largest entry, in double precision."""


def _sizes(roots: Side, types: Mapping[str, TensorType]) -> list[dict[str, int]]:
    """Small ones first: a counterexample is there to be read."""
    distinct = assignments(types, 2, roots)
    return [{name: size for name in distinct[0]} for size in ((1, 2) if distinct[0] else ())] + distinct


def differ(source: Side, target: Side, types: Mapping[str, TensorType], seed: int = 0) -> Difference | None:
    """Looks for small whole numbers on which two programs differ; ``None`` where they agree on all that were tried.

    Entries that are not finite on either side say nothing: laws hold for finite numbers.
    """
    half = len(source)
    for turn, sizes in enumerate(_sizes((*source, *target), types)):
        programs, sample = specialise([*source, *target], types, sizes)
        try:
            infer_types(programs, sample)
        except (ShapeError, Undecided):
            continue
        for draw in range(3):
            generator = np.random.default_rng([seed, turn, draw])
            inputs = {name: _draw(generator, type_, draw) for name, type_ in sample.items()}
            try:
                with np.errstate(all="ignore"):
                    values = evaluate(programs, Real(), inputs)
            except Unsupported:
                break
            for output in range(half):
                x, y = np.broadcast_arrays(np.asarray(values[programs[output]]), np.asarray(values[programs[half + output]]))
                x, y = x.astype(np.float64), y.astype(np.float64)
                finite = np.isfinite(x) & np.isfinite(y)
                scale = max(float(np.max(np.abs(x), where=finite, initial=0)), float(np.max(np.abs(y), where=finite, initial=0)))
                with np.errstate(all="ignore"):
                    wrong = np.argwhere((np.abs(x - y) > _TOLERANCE * scale) & finite)
                if len(wrong):
                    index = tuple(int(i) for i in wrong[0])
                    return Difference(inputs, output, index, float(x[index]), float(y[index]))
    return None


def _draw(generator: np.random.Generator, type_: TensorType, draw: int) -> np.ndarray:
    """Whole numbers of both signs, or positive ones in the last draw and where the type has no others."""
    shape = concrete(type_.shape)
    assert shape is not None
    if type_.dtype == DataType.BOOL:
        return np.asarray(generator.integers(0, 2, shape).astype(bool))
    values = generator.integers(1, 6, shape)
    positive = draw == 2 or type_.dtype.name.startswith("UINT")
    return np.asarray(values if positive else values * generator.choice([-1, 1], shape), np.float64)


# Equations


def _column(parser: Parser | None, text: str, problem: TextError) -> int:
    """Where reading stopped, counted from 1."""
    if parser is None:
        return len(text) - len(text.lstrip()) + 1
    if str(problem).startswith("cannot read"):  # what follows the last token
        rest = text[parser.at :]
        return parser.at + len(rest) - len(rest.lstrip()) + 1
    return parser.at - len(parser.token) + 1


def parse_equation(text: str) -> tuple[Side, Side]:
    """Reads ``term; ... = term; ...``; attributes that may be left out are filled in.

    Raises:
        EquationError: with the column.
    """
    parser: Parser | None = None
    try:
        parser = Parser(text)
        sides = []
        for mark in ("=", ""):
            roots = [parser.term()]
            while parser.accept(";"):
                roots.append(parser.term())
            sides.append(roots)
            if mark and not parser.accept("=="):
                parser.expect("=")
        parser.end()
    except TextError as problem:
        column = _column(parser, text, problem)
        message = re.sub(r" in '.*'$", "", str(problem))
        raise EquationError(
            f"column {column}: {message}; write an equation such as 'MatMul(x, Add(y, z)) = Add(MatMul(x, y), MatMul(x, z))', "
            "with ';' between several outputs"
        ) from None
    if len(sides[0]) != len(sides[1]):
        raise EquationError(f"{len(sides[0])} outputs on the left and {len(sides[1])} on the right; write as many on both sides")
    filled: dict[Term, Term] = {}
    for term in walk([*sides[0], *sides[1]]):
        if term.is_var or term.op == "Const":
            filled[term] = term
            continue
        try:
            operator = get_operator(term.op)
        except KeyError as problem:
            column = text.find(term.op) + 1
            raise EquationError(f"column {column}: {problem.args[0]}") from None
        least, most = operator.arity
        if len(term.inputs) < least or (most is not None and len(term.inputs) > most):
            wanted = str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"
            raise EquationError(f"column {text.find(term.op) + 1}: {term.op} takes {wanted} operands, not {len(term.inputs)}")
        for name in ("axis", "axes"):
            given = term.attr(name)
            axes = given if isinstance(given, tuple) else (given,)
            if any(isinstance(axis, int) and axis >= 0 for axis in axes):
                column = text.find(term.op) + 1
                raise EquationError(
                    f"column {column}: {term.op} with {name}={format_value(given)}; axes count from the end, -1 last"
                )
        filled[term] = make(term.op, [filled[i] for i in term.inputs], {**operator.defaults, **dict(term.attrs)}, term.out)
    return tuple(filled[t] for t in sides[0]), tuple(filled[t] for t in sides[1])


def parse_let(text: str) -> dict[str, TensorType]:
    """Reads ``x:float[m,k], w:float[k,n]``. Raises EquationError with the column."""
    parser: Parser | None = None
    types: dict[str, TensorType] = {}
    try:
        parser = Parser(text)
        while parser.kind != "end":
            name = parser.name("a variable")
            parser.expect(":")
            types[name] = parser.type()
            parser.accept(",")
    except TextError as problem:
        column = _column(parser, text, problem)
        message = re.sub(r" in '.*'$", "", str(problem))
        raise EquationError(f"--let, column {column}: {message}; write types such as 'x:float[m,k], w:float[k,n]'") from None
    return types


@dataclass(frozen=True)
class Explanation:
    """What is known of an equation.

    Attributes:
        verdict: proved, refuted or unknown.
        types: the sample types it was examined under.
        proof: certificate and conditions, where it is proved.
        difference: numbers that refute it.
        mismatch: why the sides have no typing in common, which refutes it too.
        advice: what to try, where it is unknown.
    """

    verdict: Verdict
    source: Side
    target: Side
    types: Mapping[str, TensorType]
    proof: Proof | None = None
    difference: Difference | None = None
    mismatch: str = ""
    advice: str = ""

    @property
    def exit_code(self) -> int:
        """0 proved, 1 refuted, 3 undecided; 2 stays for what cannot be read."""
        return {Verdict.PROVED: 0, Verdict.REFUTED: 1, Verdict.UNKNOWN: 3}[self.verdict]

    @property
    def status(self) -> str:
        return "undecided" if self.verdict == Verdict.UNKNOWN else str(self.verdict)

    def as_json(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "status": self.status,
            "source": [format_term(t) for t in self.source],
            "target": [format_term(t) for t in self.target],
            "types": {name: str(type_) for name, type_ in self.types.items()},
        }
        if self.proof is not None:
            result["guards"] = [str(c) for c in self.proof.conditions]
            result["certificate"] = [str(i) for i in self.proof.certificate.instances]
        if self.difference is not None:
            result["counterexample"] = self.difference.as_json()
        if self.mismatch:
            result["counterexample"] = {"types": self.mismatch}
        if self.advice:
            result["advice"] = self.advice
        return result

    def lines(self) -> list[str]:
        """The report."""
        lines = [f"{self.status}   for {typing_text(self.types)}" if self.types else self.status]
        if self.proof is not None:
            lines += proof_in_words(self.proof.conditions, self.proof.certificate)
        if self.difference is not None:
            lines.append(f"counterexample: {self.difference}")
            lines += [f"  {name} = {value.tolist()}" for name, value in self.difference.inputs.items() if value.size <= 64]
        if self.mismatch:
            lines.append(f"counterexample: {self.mismatch}")
        if self.advice:
            lines.append(self.advice)
        return lines


def _given_types(source: Side, target: Side, types: Mapping[str, TensorType]) -> str | None:
    """Why the sides differ in type under types that are all given; raises EquationError where both are ill-typed."""
    failures: list[str] = []
    results: list[list[TensorType]] = []
    for side in (source, target):
        try:
            inferred = infer_types(side, types)
            results.append([inferred[t] for t in side])
        except (ShapeError, Undecided) as problem:
            failures.append(str(problem))
    if len(failures) == 2:
        raise EquationError(f"neither side is well-typed: {failures[0]}; give other types with --let")
    if failures:
        return f"the types are {', '.join(map(str, results[0]))} on one side, and the other is ill-typed: {failures[0]}"
    if results[0] != results[1]:
        left, right = (", ".join(map(str, r)) for r in results)
        return f"the sides have types {left} and {right}"
    return None


def explain(text: str, let: Mapping[str, TensorType] | None = None, prover: Prover | None = None) -> Explanation:
    """Certifies or refutes an equation.

    Args:
        text: ``term; ... = term; ...``.
        let: types of variables; the others are inferred, matrices where nothing else is asked for.
        prover: to reuse.

    Raises:
        EquationError: it cannot be read, or no typing is found under which either side makes sense.
    """
    source, target = parse_equation(text)
    given = dict(let or {})
    names = {t.name for t in walk([*source, *target]) if t.is_var}
    unknown = sorted(set(given) - names)
    if unknown:
        raise EquationError(f"--let gives a type to {', '.join(unknown)}, which the equation does not use")
    try:
        typed = infer_typing(source, target, given)
    except (KeyError, TypeError, AttributeError) as problem:
        raise EquationError(f"an attribute is missing or not of its kind: {problem}") from None
    if isinstance(typed, ShapeError):
        return _untyped(source, target, given, names, typed)
    prover = prover or Prover()
    plain, general = typed
    found = _examine(*general, prover, bool(given))
    if general == plain:
        return found
    usual = _examine(*plain, prover, bool(given))
    if found.verdict != Verdict.PROVED or usual.verdict == Verdict.PROVED:
        return usual
    return replace(found, advice=f"It does not hold as it stands for {typing_text(plain[2])}: {usual.difference or 'undecided'}")


def typing_text(types: Mapping[str, TensorType]) -> str:
    """Types of variables as ``--let`` takes them."""
    return ", ".join(f"{name}: {type_}" for name, type_ in types.items())


def _examine(source: Side, target: Side, types: Mapping[str, TensorType], prover: Prover, typed: bool) -> Explanation:
    difference = differ(source, target, types)
    proof = prover.certify(source, target, types)
    if proof is not None and (difference is None or any(c.guard.of_values for c in proof.conditions)):
        return Explanation(Verdict.PROVED, source, target, types, proof)
    if difference is not None:
        return Explanation(Verdict.REFUTED, source, target, types, difference=difference)
    return Explanation(Verdict.UNKNOWN, source, target, types, advice=_advice(source, target, typed))


def _untyped(source: Side, target: Side, given: Mapping[str, TensorType], names: set[str], problem: ShapeError) -> Explanation:
    """No typing serves both sides: refuted where one side alone has one."""
    if names <= set(given):
        mismatch = _given_types(source, target, given)
        if mismatch:
            return Explanation(Verdict.REFUTED, source, target, given, mismatch=mismatch)
        raise EquationError(f"{problem}; give other types with --let")
    alone = []
    for side in (source, target):
        own = {name: type_ for name, type_ in given.items() if any(t.is_var and t.name == name for t in walk(side))}
        alone.append(infer_typing(side, side, own))
    first, second = alone
    if isinstance(first, ShapeError) or isinstance(second, ShapeError):
        which, reason = ("source", first) if isinstance(first, ShapeError) else ("target", second)
        raise EquationError(f"no types were found under which the {which} makes sense: {reason}; give them with --let")
    mismatch = _mismatch(first[0], source, target, problem)
    return Explanation(Verdict.REFUTED, source, target, first[0][2], mismatch=mismatch)


def _mismatch(typed: Typing, source: Side, target: Side, problem: ShapeError) -> str:
    """Shapes for which the source makes sense and the target does not."""
    programs, shapes = specialise([*source, *target], typed[2], assignments(typed[2], 1)[0])
    text = f"with {', '.join(f'{name}: {list(type_.shape)}' for name, type_ in shapes.items())} the source is well-typed"
    try:
        infer_types(programs[len(source) :], shapes)
    except (ShapeError, Undecided) as reason:
        return f"{text}, the target is not: {reason}"
    except KeyError:  # a variable that only the target has
        pass
    return f"{text}, and the target can never be like it: {problem}"


def _advice(source: Side, target: Side, typed: bool) -> str:
    """What to try where neither a proof nor a counterexample is found."""
    axioms = load_axioms()
    known = {t.op for axiom in axioms.values() for t in walk([axiom.left, axiom.right])}
    without = sorted({t.op for t in walk([*source, *target]) if t.inputs} - known)
    if without:
        return (
            f"no difference was found in numbers, and no operator property speaks of {', '.join(without)}: "
            "add properties to rules_db/axioms, and try again"
        )
    hint = "" if typed or dim_symbols([*source, *target]) else " give other types with --let, or"
    return (
        "no difference was found in numbers, but no proof either:" + hint + " prove it in smaller steps, "
        "or add the property that it needs to rules_db/axioms"
    )
