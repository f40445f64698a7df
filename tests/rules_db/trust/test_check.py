"""The trusted checker: what it takes for a proof, and all that it does not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mugraph.terms.shape import ShapeError
from mugraph.terms.term import AttrVar, Term, make, var, walk
from mugraph.terms.text import Parser, parse_term, parse_type
from rulegen.numeric.trials import try_out
from rulegen.prove.second import z3check
from rulegen.share.audit import audit
from rules_db.trust.certificate import Certificate, Instance
from rules_db.trust.check import MALFORMED, Presence, check, presence
from rules_db.trust.condition import Condition, parse_condition
from rules_db.trust.implied import implied
from rules_db.trust.properties import load_axioms, parse_axioms
from rules_db.trust.rule import FloatClass, Rule
from tests.support.rules import LANDMARKS, TYPES, certify, landmark, side, types_of

AXIOMS = load_axioms()


def condition(text: str) -> Condition:
    return parse_condition(Parser(text))


@pytest.mark.parametrize("name", LANDMARKS)
def test_landmarks_are_proved_by_both_checkers(name: str) -> None:
    rule = landmark(name)
    assert check(rule, AXIOMS) == []
    assert z3check(rule) == []


@pytest.mark.parametrize("name", LANDMARKS)
def test_every_instance_is_needed(name: str) -> None:
    rule = landmark(name)
    instances = rule.certificate.instances
    for index in range(len(instances)):
        shorter = replace(rule, certificate=Certificate(instances[:index] + instances[index + 1 :]))
        assert check(shorter, AXIOMS)


@pytest.mark.parametrize("name", LANDMARKS)
def test_every_condition_is_needed(name: str) -> None:
    rule = landmark(name)
    for index, dropped in enumerate(rule.conditions):
        assert check(replace(rule, conditions=rule.conditions[:index] + rule.conditions[index + 1 :]), AXIOMS), dropped


def test_goals_are_rebuilt_from_the_rule() -> None:
    """A certificate of another rule proves nothing here."""
    for name, other in itertools.permutations(("lora", "scalar", "two_products", "involution"), 2):
        rule = landmark(name)
        stolen = replace(rule, certificate=landmark(other).certificate, types={**TYPES})
        assert check(stolen, AXIOMS)
        assert z3check(stolen)


def test_every_output_is_checked() -> None:
    rule = landmark("two_products")
    failures = check(replace(rule, target=rule.target[::-1]), AXIOMS)
    assert any(f.startswith("output 0: the steps do not lead") for f in failures)
    assert any(f.startswith("output 1 has type") for f in failures)
    assert check(replace(rule, target=rule.target[:1]), AXIOMS) == ["2 outputs on the left and 1 on the right"]


def rule_of(source: str, target: str, proof: str, *conditions: str, **types: str) -> Rule:
    parser = Parser(proof)
    instances = []
    while parser.kind != "end":
        instances.append(Instance.parse(parser))
        parser.accept(";")
    given = {**TYPES, **{name: parse_type(text) for name, text in types.items()}}
    sides = side(source), side(target)
    return Rule(*sides, given, tuple(map(condition, conditions)), FloatClass.EXACT, Certificate(tuple(instances)))


def test_what_is_wrong_is_said() -> None:
    good = "MatMul(MatMul(X, A), B)", "MatMul(X, MatMul(A, B))"
    proof = "matmul.associative{x=X, y=A, z=B}"
    matrices = "matrix(X)", "matrix(A)", "matrix(B)"
    assert check(rule_of(*good, proof, *matrices), AXIOMS) == []
    (failure,) = check(rule_of(*good, proof, *matrices[:2]), AXIOMS)
    assert failure == "step 1 needs matrix(B), which the rule's conditions do not give"
    assert check(rule_of(*good, "matmul.miraculous{x=X}", *matrices), AXIOMS) == [
        "there is no operator property 'matmul.miraculous'"
    ]
    assert check(rule_of(*good, "matmul.associative{x=X, y=A}", *matrices), AXIOMS) == [
        "'matmul.associative' with unbound or unknown z"
    ]
    assert "ground" in check(rule_of("x", "x", "transpose.identity{x=Transpose[perm=$p](x)}"), AXIOMS)[0]
    assert "MatMul" in check(rule_of(*good, "matmul.associative{x=A, y=X, z=B}", *matrices), AXIOMS)[0]
    (failure,) = check(rule_of("x", "x", "", "dim(x, -1, m)"), AXIOMS)
    assert failure == "the rule's own sample types contradict its condition dim(x, -1, m)"
    assert any("do not lead" in failure for failure in check(rule_of(*good, "", *matrices), AXIOMS))


def test_a_step_must_start_from_something_present() -> None:
    """Terms that nothing makes well-typed at a match may not carry a proof, unless the rule asks for them."""
    double = "add.commutative{x=MatMul(X, W), y=MatMul(X, W)}"
    proof = f"{double}; transpose.compose{{x=x, $p=(1,0), $q=(1,0), $r=()}}; transpose.identity{{x=x}}"
    assert any("step 1 starts from a term that is not present" in f for f in check(rule_of("x", "x", proof), AXIOMS))
    assert check(rule_of("x", "x", proof, "typed(MatMul(X, W))", "typed(Transpose[perm=(1,0)](x))"), AXIOMS)
    nested = "typed(Transpose[perm=(1,0)](Transpose[perm=(1,0)](x)))"
    assert check(rule_of("x", "x", proof, "typed(Add(MatMul(X, W), MatMul(X, W)))", nested), AXIOMS) == []


def test_a_changed_property_is_noticed() -> None:
    rule = landmark("transposed_product")
    (changed,) = parse_axioms(
        "transpose.matmul: Transpose[perm=(1,0)](MatMul(x, y)) = MatMul(x, y) when matrix(x), matrix(y)", "changed.axioms"
    )
    assert check(rule, {**AXIOMS, changed.name: changed})


def test_attributes_are_alike_only_where_their_types_are() -> None:
    """A flag and the number that equals it in Python are two attributes."""
    largest = "ReduceMax[axes=(-1,),keepdims={}](Relu(x))"
    assert check(rule_of(largest.format("true"), largest.format("true"), ""), AXIOMS) == []
    (failure,) = check(rule_of(largest.format("true"), largest.format("1"), ""), AXIOMS)
    assert "ReduceMax with keepdims=1: keepdims is true or false" in failure
    kept, number = (parse_term(largest.format(flag)) for flag in ("true", "1"))
    present, _ = presence((kept,), (number,), [], [])
    assert present.find(kept) is not present.find(number)


def _closed(terms: list[Term], pairs: list[tuple[Term, Term]]) -> dict[Term, int]:
    """The classes of terms by the definition: merged where a pair or equal operands say so, until nothing changes."""
    classes = {term: number for number, term in enumerate(walk(terms))}

    def merge(a: Term, b: Term) -> bool:
        old, new = classes[a], classes[b]
        for term in classes:
            if classes[term] == old:
                classes[term] = new
        return old != new

    changed = True
    while changed:
        merged = [merge(a, b) for a, b in pairs]
        for a, b in itertools.combinations(classes, 2):
            if a.op == b.op != "Var" and [classes[i] for i in a.inputs] == [classes[i] for i in b.inputs]:
                merged.append(merge(a, b))
        changed = any(merged)
    return classes


@pytest.mark.parametrize("seed", range(40))
def test_what_follows_from_equalities_is_what_the_definition_says(seed: int) -> None:
    """Terms and equalities come in any order, as steps of a proof do."""
    generator = random.Random(seed)
    terms = [var(name) for name in "abcd"]
    for _ in range(24):
        terms.append(make(generator.choice(["Relu", "Neg"]), [generator.choice(terms)]))
        terms.append(make("Add", generator.choices(terms, k=2)))
    pairs = [(generator.choice(terms), generator.choice(terms)) for _ in range(4)]
    present = Presence(terms[:20])
    for a, b in pairs:
        present.add([a, b])
        present.join(a, b)
    absent = {term: present.find(term) for term in terms}
    present.add(terms)
    classes = _closed(terms, pairs)
    for a, b in itertools.combinations(terms, 2):
        assert (present.find(a) is present.find(b)) == (classes[a] == classes[b]), (a, b)
    assert all(found is None or classes[found] == classes[term] for term, found in absent.items())


def test_an_equality_costs_what_uses_its_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof of many steps is checked in time that grows with its steps, not with their square."""
    heads = [var(f"x{i}") for i in range(200)]
    present = Presence([make("Relu", [make("Neg", [head])]) for head in heads])
    asked = []
    key = Presence._key

    def counted(*about: Any) -> Any:
        asked.append(about)
        return key(*about)

    monkeypatch.setattr(Presence, "_key", counted)
    for head in heads:
        present.join(make("Neg", [head]), head)
    assert len(asked) <= 4 * len(heads)


@pytest.mark.parametrize(
    ("wanted", "given", "answer"),
    [
        ("matrix(MatMul(a, b))", ("matrix(a)", "matrix(b)"), True),
        ("matrix(MatMul(a, b))", ("matrix(a)",), False),
        ("matrix(Relu(a))", ("matrix(a)",), True),
        ("matrix(Transpose[perm=(1,0)](a))", (), True),
        ("matrix(a)", (), False),
        ("matrix(a)", ("agree(a, b, -2)",), True),
        ("dim(MatMul(a, b), -1, n)", ("dim(b, -1, n)", "matrix(b)"), True),
        ("dim(MatMul(a, b), -1, n)", ("dim(b, -1, n)",), False),
        ("dim(MatMul(a, b), -2, n)", ("dim(a, -2, n)", "matrix(b)"), True),
        ("dim(MatMul(a, b), -2, n)", ("dim(a, -2, n)",), False),
        ("dim(Concat[axis=-1](a, b), -1, n+p)", ("dim(a, -1, n)", "dim(b, -1, p)"), True),
        ("dim(Concat[axis=-1](a, b), -1, n)", ("dim(a, -1, n)", "dim(b, -1, p)"), False),
        ("dim(Transpose[perm=(1,0)](a), -1, n)", ("dim(a, -2, n)",), True),
        ("dim(Transpose[perm=(1,0)](a), -1, n)", ("dim(a, -1, n)",), False),
        ("dim(Add(a, b), -1, n)", ("dim(a, -1, n)",), False),
        ("constant_along(Mul(a, b), -1)", ("constant_along(a, -1)", "ones(b)"), True),
        ("constant_along(Mul(a, b), -1)", ("constant_along(a, -1)",), False),
        ("constant_along(MatMul(a, b), -1)", ("constant_along(a, -1)", "constant_along(b, -1)"), False),
        ("constant_along(2.0, -1)", (), True),
        ("fits(a, a)", (), True),
        ("fits(a, b)", (), False),
        ("same_shape(a, b)", ("same_shape(b, c)",), False),
        ("floating(MatMul(a, b))", ("floating(b)",), True),
        ("floating(IsNaN(a))", ("floating(a)",), False),
        ("floating(Softplus(a))", ("floating(a)",), True),
        ("floating(Tanh(a))", ("floating(a)",), False),  # asked of Tanh itself
        ("rank(Softmax[axis=-1](a), 4)", ("rank(a, 4)",), True),
        ("rank(Trilu[upper=true](a), 2)", ("rank(a, 2)",), True),
        ("rank(CumSum[axis=-1](a), 2)", ("rank(a, 2)",), False),  # asked of CumSum itself
        ("rank(Pad[begins=(0,1),ends=(1,0),mode='constant',value=0.0](a), 2)", ("rank(a, 2)",), True),
        ("rank(Reshape[drop=1,shape=(2,n)](a), 2)", ("rank(a, 2)",), False),
        ("floating(2.0)", (), False),
        ("finite(2.0)", (), True),
        ("nonnegative(-2.0)", (), False),
        ("not_nan(Relu(a))", ("not_nan(a)",), False),
        ("distinct(-1, -2)", (), True),
        ("distinct(-1, -1)", (), False),
        ("composes((), (1,0), (1,0))", (), True),
        ("composes((1,0), (1,0), (1,0))", (), False),
        ("moves((1,0,2), -3, -2)", (), True),
        ("moves((1,0,2), -3, -3)", (), False),
    ],
)
def test_what_conditions_imply(wanted: str, given: tuple[str, ...], answer: bool) -> None:
    assert implied(condition(wanted), list(map(condition, given))) is answer


def replaced(root: Term, old: Term, new: Term) -> Term:
    done: dict[Term, Term] = {}
    for term in walk([root]):
        if term is old:
            done[term] = new
        else:
            done[term] = Term(term.op, term.attrs, tuple(done[i] for i in term.inputs), term.out) if term.inputs else term
    return done[root]


def mutations(root: Term) -> Iterator[Term]:
    """Programs with two operands swapped, an axis or part changed, an operator or a constant replaced."""
    for term in walk([root]):
        attrs = dict(term.attrs)
        if len(term.inputs) >= 2:
            yield replaced(root, term, make(term.op, term.inputs[1::-1] + term.inputs[2:], attrs, term.out))
        if "axis" in attrs:
            yield replaced(root, term, make(term.op, term.inputs, {**attrs, "axis": -3 - attrs["axis"]}, term.out))
        if term.op == "Split":
            yield replaced(root, term, make(term.op, term.inputs, attrs, 1 - term.out))
            yield replaced(root, term, make(term.op, term.inputs, {**attrs, "sizes": attrs["sizes"][::-1]}, term.out))
        for group in (("Add", "Sub", "Mul", "Div"), ("Relu", "Exp", "Neg")):
            for other in group:
                if term.op in group and other != term.op:
                    yield replaced(root, term, make(other, term.inputs))
        if term.inputs:
            yield replaced(root, term, term.inputs[-1])
        if term.op == "Const" and isinstance(term.attr("value"), float):
            yield replaced(root, term, parse_term("3.0"))


def mutants() -> Iterator[Rule]:
    """Each landmark with one output of one side changed and its certificate kept."""
    for name in LANDMARKS:
        rule = landmark(name)
        for where in ("source", "target"):
            roots = getattr(rule, where)
            for output, root in enumerate(roots):
                for changed in dict.fromkeys(mutations(root)):
                    if changed is not root:
                        yield replace(rule, **{where: (*roots[:output], changed, *roots[output + 1 :])})


def test_no_mutated_rule_is_accepted() -> None:
    """The old certificate does not do for a wrong rule, and what the finder proves of the mutants is true."""
    count = proved = 0
    for mutant in mutants():
        count += 1
        failures, (_, difference) = check(mutant, AXIOMS), try_out(mutant, AXIOMS)
        assert failures or difference is None, str(mutant)
        if not failures:
            continue  # the mutation changed nothing: a commutative operator's operands, a unary law's other form
        try:
            proof = certify(mutant.source, mutant.target, types_of(mutant.source, mutant.target))
        except ShapeError:
            continue
        if proof is not None:
            proved += 1
            found = replace(mutant, conditions=proof.conditions, certificate=proof.certificate)
            assert audit([found]).failures == (), str(mutant)
    assert count > 200
    assert proved < count / 4


def test_no_random_equation_is_accepted() -> None:
    """Targets of one landmark against sources of another, where types allow: a part of them, since each "unknown" takes long."""
    sides = [(name, roots) for name in LANDMARKS for roots in (landmark(name).source, landmark(name).target)]
    for (name, left), (other, right) in list(itertools.combinations(sides, 2))[::5]:
        if name == other or len(left) != len(right):
            continue
        proof = certify(left, right, types_of(left, right))
        if proof is not None:
            rule = Rule(left, right, types_of(left, right), proof.conditions, FloatClass.APPROXIMATES, proof.certificate)
            assert audit([rule]).failures == ()


def test_the_audit_names_each_failure() -> None:
    rule = landmark("lora")
    wrong = replace(rule, target=side("MatMul(X, Add(W, MatMul(B, A)))"))
    false = replace(rule, target=side("MatMul(X, Sub(W, MatMul(A, B)))"))
    report = audit([rule, false])
    assert (report.checked, report.passed) == (2, False)
    assert {failure.examination for failure in report.failures} == {"certificate", "Z3", "random test"}
    assert all(failure.rule == false.id for failure in report.failures)
    assert str(report.failures[0]).startswith(f"rule {false.id}: certificate: ")
    assert not audit([wrong]).passed


def test_the_random_test_tries_batches() -> None:
    """Without its guard the law of matrices is false for a vector operand; the certificate check says so first."""
    rule = landmark("lora")
    runs, difference = try_out(rule, AXIOMS)
    assert runs >= 6 and difference is None


@pytest.mark.parametrize(
    "text",
    ["Softmax[axis=foo](x)", "Transpose[perm=5](x)", "Reshape[drop=1,shape=7](x)"],
)
def test_attributes_of_the_wrong_kind_are_a_failure(text: str) -> None:
    rule = Rule((parse_term(text),), (parse_term("x"),), {"x": TYPES["x"]}, (), FloatClass.EXACT, Certificate(()))
    (reason,) = check(rule, AXIOMS)
    assert reason.startswith(f"{MALFORMED}: ") and (" is a " in reason or "TypeError" in reason)
    (failure,) = audit([rule]).failures
    assert failure.examination == ("certificate" if "foo" in text else "text")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("agree(x, x, foo)", MALFORMED),
        ("moves(3, -1, -1)", MALFORMED),
        ("dim(x, 3, m)", "the rule's own sample types contradict its condition dim(x, 3, m)"),
    ],
)
def test_conditions_on_the_wrong_kind_are_a_failure(text: str, reason: str) -> None:
    instance = Instance("neg.involution", (("x", parse_term("x")),))
    rule = Rule(side("Neg(Neg(x))"), side("x"), {"x": TYPES["x"]}, (), FloatClass.EXACT, Certificate((instance,)))
    assert check(rule, AXIOMS) == []
    guarded = replace(rule, conditions=(condition(text),))
    assert check(guarded, AXIOMS)[0].startswith(reason)
    assert not audit([guarded]).passed


@pytest.mark.parametrize("zeros", [False, True], ids=["plain", "zeros"])
def test_no_blocks_are_no_blocks_of_zero(zeros: bool) -> None:
    """Without blocks a scale of one entry is that of all rows, and two of them side by side are those of two rows."""
    left, right = ("q, s, z", "r, t, u") if zeros else ("q, s", "r, t")
    parts = ", ".join(f"Concat[axis=-1]({one}, {two})" for one, two in zip(left.split(", "), right.split(", "), strict=True))
    number = "DequantizeLinear[axis=-2,block={}]({})".format
    conditions = tuple(condition(f"typed({text})") for text in (number("$b", left), number("$b", right), "Concat[axis=-1](q, r)"))
    names = (left + ", " + right).split(", ")
    instance = Instance(f"blocks.concat_columns{'_zero' * zeros}", tuple((n, var(n)) for n in names), (("b", AttrVar("b")),))

    def rule(block: int, scale: str) -> Rule:
        shapes = {"q": "uint8[2,4]", "r": "uint8[2,4]", "s": f"float{scale}", "t": f"float{scale}"}
        types = {name: parse_type(shapes.get(name, f"uint8{scale}")) for name in names}
        source = side(f"Concat[axis=-1]({number('$b', left)}, {number('$b', right)})")
        open_ = Rule(source, side(number("$b", parts)), types, conditions, FloatClass.EXACT, Certificate((instance,)))
        return replace(open_, attrs={"b": block})

    assert check(rule(1, "[2,4]"), AXIOMS) == []
    false = rule(0, "[1]")
    assert try_out(false, AXIOMS)[1] is not None, "a scale each for the rows is not one each for the halves of every row"
    assert check(false, AXIOMS)[0] == f"{MALFORMED}: DequantizeLinear with block=0: block is a whole number above zero"
    written = Certificate((replace(instance, attrs=(("b", 0),)),))
    closed = tuple(c.substitute({}, {"b": 0}) for c in conditions)
    assert MALFORMED in check(replace(false.sample(), conditions=closed, certificate=written), AXIOMS)[0]


def test_a_number_is_no_axis() -> None:
    """Python takes -1.0 for -1; the registry says that axes are whole."""
    instance = Instance("reduce.single.ReduceSum", (("x", parse_term("x")),), (("k", -1.0),))
    source = parse_term("ReduceSum[axes=(-1.0,),keepdims=true](x)")
    rule = Rule(
        (source,), (parse_term("x"),), {"x": parse_type("[1,1]")}, (condition("ones(x)"),), FloatClass.EXACT, Certificate(())
    )
    rule = replace(rule, certificate=Certificate((instance,)))
    (reason,) = check(rule, AXIOMS)
    assert "axes=(-1.0,): axes is a list of whole numbers or dimensions" in reason
    (failure,) = audit([rule]).failures
    assert failure.examination == "text" and "axes is a list of whole numbers" in failure.reason
    whole = replace(rule, source=side("ReduceSum[axes=(-1,),keepdims=true](x)"))
    assert any("step 1" in reason and "whole number" in reason for reason in check(whole, AXIOMS)), "in a certificate too"
