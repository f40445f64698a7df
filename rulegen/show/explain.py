"""Equations typed by hand: certified, refuted by a counterexample in numbers, or left open with advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mugraph.ops.interp import infer_types
from mugraph.terms.shape import ShapeError, TensorType, Undecided
from mugraph.terms.term import Term, format_term, open_names, walk
from rulegen.numeric.differences import Difference, differ
from rulegen.numeric.samples import BeyondNumbers, assignments, specialise
from rulegen.prove.prover import Proof, Prover
from rulegen.show.equations import EquationError, parse_equation, typing_text
from rulegen.typings.inference import EquationTyping, infer_typing
from rules_db.show.words import proof_in_words
from rules_db.trust.condition import Condition
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Side, Verdict, dim_symbols

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """The answer to an equation.

    Attributes:
        verdict: proved, refuted or unknown.
        types: the sample types it was examined under.
        proof: certificate and conditions, where it is proved.
        difference: numbers that refute it.
        mismatch: why the sides have no typing in common, which refutes it too.
        advice: for where it is unknown.
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


def _declared_mismatch(source: Side, target: Side, types: Mapping[str, TensorType]) -> str | None:
    """Why the sides differ in type where all types are declared; raises EquationError where both are ill-typed."""
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


def explain(
    text: str,
    let: Mapping[str, TensorType] | None = None,
    prover: Prover | None = None,
    given: Sequence[Condition] = (),
) -> Explanation:
    """Certifies or refutes an equation.

    Args:
        text: ``term; ... = term; ...``.
        let: types of variables; the others are inferred, matrices where nothing else is asked for.
        prover: to reuse.
        given: conditions on values that a proof may ask for.

    Raises:
        EquationError: it cannot be read, or no typing is found under which either side makes sense.
    """
    source, target = parse_equation(text)
    _refuse_open_attributes([*source, *target])
    declared = dict(let or {})
    names = {t.name for t in walk([*source, *target]) if t.is_var}
    unknown = sorted(set(declared) - names)
    if unknown:
        raise EquationError(f"--let gives a type to {', '.join(unknown)}, which the equation does not use")
    try:
        typed = infer_typing(source, target, declared)
    except (KeyError, TypeError, AttributeError) as problem:
        raise EquationError(f"an attribute is missing or not of its kind: {problem}") from None
    if isinstance(typed, ShapeError):
        return _untyped(source, target, declared, names, typed)
    prover = prover or Prover()
    plain, general = typed
    answer = _examine(*general, prover, bool(declared), given)
    if general == plain:
        return answer
    usual = _examine(*plain, prover, bool(declared), given)
    if answer.verdict != Verdict.PROVED or usual.verdict == Verdict.PROVED:
        return usual
    return replace(
        answer, advice=f"It does not hold as it stands for {typing_text(plain.types)}: {usual.difference or 'undecided'}"
    )


def _refuse_open_attributes(terms: Sequence[Term]) -> None:
    """What an attribute that stands for any value must fulfil is known of a rule; an equation says it of no value."""
    names = sorted({name for term in walk(terms) for _, value in term.attrs for name in open_names(value)})
    if names:
        listed = ", ".join(f"${name}" for name in names)
        raise EquationError(f"{listed} may be any attribute; write values, or a variable for a number: '{names[0]}'")


def _examine(
    source: Side,
    target: Side,
    types: Mapping[str, TensorType],
    prover: Prover,
    typed: bool,
    given: Sequence[Condition],
) -> Explanation:
    difference, untried = None, ""
    try:
        difference = differ(source, target, types)
    except BeyondNumbers as problem:
        untried = str(problem)
    proof = prover.certify(source, target, types, given=given)
    if proof is not None and (difference is None or any(c.guard.of_values for c in proof.conditions)):
        return Explanation(Verdict.PROVED, source, target, types, proof)
    if difference is not None:
        return Explanation(Verdict.REFUTED, source, target, types, difference=difference)
    return Explanation(Verdict.UNKNOWN, source, target, types, advice=_advice(source, target, typed, untried))


def _untyped(source: Side, target: Side, declared: Mapping[str, TensorType], names: set[str], problem: ShapeError) -> Explanation:
    """No typing serves both sides: refuted where one side alone has one."""
    if names <= set(declared):
        mismatch = _declared_mismatch(source, target, declared)
        if mismatch:
            return Explanation(Verdict.REFUTED, source, target, declared, mismatch=mismatch)
        raise EquationError(f"{problem}; give other types with --let")
    alone = []
    for side in (source, target):
        used = {name: type_ for name, type_ in declared.items() if any(t.is_var and t.name == name for t in walk(side))}
        alone.append(infer_typing(side, side, used))
    first, second = alone
    if isinstance(first, ShapeError) or isinstance(second, ShapeError):
        which, reason = ("source", first) if isinstance(first, ShapeError) else ("target", second)
        raise EquationError(f"no types were found under which the {which} makes sense: {reason}; give them with --let")
    mismatch = _mismatch(first[0], source, target, problem)
    return Explanation(Verdict.REFUTED, source, target, first[0].types, mismatch=mismatch)


def _mismatch(typed: EquationTyping, source: Side, target: Side, problem: ShapeError) -> str:
    """Shapes for which the source makes sense and the target does not."""
    programs, shapes = specialise([*source, *target], typed.types, assignments(typed.types, 1)[0])
    text = f"with {', '.join(f'{name}: {list(type_.shape)}' for name, type_ in shapes.items())} the source is well-typed"
    try:
        infer_types(programs[len(source) :], shapes)
    except (ShapeError, Undecided) as reason:
        return f"{text}, the target is not: {reason}"
    except KeyError:  # a variable that only the target has
        pass
    return f"{text}, and the target can never be like it: {problem}"


def _advice(source: Side, target: Side, typed: bool, untried: str) -> str:
    """Advice for where neither a proof nor a counterexample is found; ``untried`` says why no numbers were tried."""
    numbers = f"it was not tried in numbers ({untried})" if untried else "no difference was found in numbers"
    axioms = load_axioms()
    mentioned = {t.op for axiom in axioms.values() for t in walk([axiom.left, axiom.right])}
    without = sorted({t.op for t in walk([*source, *target]) if t.inputs} - mentioned)
    if without:
        return (
            f"{numbers}, and no operator property speaks of {', '.join(without)}: "
            "add properties to rules_db/axioms, and try again"
        )
    hint = "" if typed or dim_symbols([*source, *target]) else " give other types with --let, or"
    return (
        (f"{numbers}, and no proof was found:" if untried else f"{numbers}, but no proof either:")
        + hint
        + " prove it in smaller steps, "
        "or add the property that it needs to rules_db/axioms"
    )
