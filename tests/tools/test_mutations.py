"""Wrong rules are not accepted: mutants of the shipped rules and of instances of operator properties."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import islice

import pytest

from mugraph.terms.term import const, make
from mugraph.terms.text import parse_type
from rulegen.prove.prover import Prover
from rulegen.prove.search import ProofLimits
from rules_db.library import shipped_rules
from rules_db.trust.certificate import Certificate, Instance
from rules_db.trust.check import check
from rules_db.trust.properties import Axiom, load_axioms, parse_axioms
from rules_db.trust.rule import Rule
from tests.support.rules import landmark
from tools import mutations
from tools.mutations import Mutant, MutantOutcome, attack, corpus, examine, mutants

AXIOMS = load_axioms()
CHOSEN = ("conv.concat_outputs", "conv.input_factor", "conv.pad_input", "pool.concat", "average_pool.conv")


LIMITS = ProofLimits(nodes=250, rounds=3, growth=2)
"""The bench searches for false proofs with the limits of a growth; here a short search must do."""


@cache
def prover() -> Prover:
    return Prover(AXIOMS, LIMITS)


@cache
def rules() -> list[Rule]:
    chosen = {name: axiom for name, axiom in AXIOMS.items() if name.startswith(CHOSEN)}
    found = corpus(shipped_rules(), chosen)
    assert len(found) > len(shipped_rules())
    return found


def test_what_ships_is_not_taken_to_be_false() -> None:
    """A rule that asks for attended rows is, of rows that hide everything: no such row refutes it."""
    asking = [rule.sample() for rule in shipped_rules() if any(c.predicate == "attends" for c in rule.conditions)]
    assert len(asking) == 6 and not any(mutations._false(rule, AXIOMS) for rule in asking)
    unguarded = [replace(rule, conditions=tuple(c for c in rule.conditions if c.predicate != "attends")) for rule in asking]
    assert any(mutations._false(rule, AXIOMS) for rule in unguarded)


def test_no_false_rule_is_accepted() -> None:
    tally = attack(rules(), AXIOMS, 150, seed=4, prover=prover())
    assert tally.accepted == (), tally.accepted[0]
    assert tally.false == 150
    kinds = {kind for (kind, outcome) in tally.counts if outcome == MutantOutcome.REJECTED}
    assert kinds >= {"operands", "operator", "factor", "subterm", "wrapped", "everywhere"}, "the sample is one-sided"


def test_mutants_of_convolutions_bring_wrong_groups() -> None:
    found = [m for m in islice(mutants(rules(), seed=1), 600) if m.kind == "groups"]
    outcomes = Counter(examine(m, AXIOMS, prover()) for m in found[:25])
    assert outcomes[MutantOutcome.REJECTED] >= 1 and not outcomes[MutantOutcome.ACCEPTED]


def test_mutants_are_the_same_for_the_same_seed() -> None:
    one, other, third = ([str(m) for m in islice(mutants(rules(), seed), 40)] for seed in (3, 3, 4))
    assert one == other != third


@pytest.mark.parametrize("name", ["lora", "two_products", "row_divisor", "four_terms", "split_of_relu", "softmax_shift"])
def test_no_instance_can_be_missing(name: str) -> None:
    rule = landmark(name)
    instances = rule.certificate.instances
    for index in range(len(instances)):
        rest = Certificate((*instances[:index], *instances[index + 1 :]))
        assert check(replace(rule, certificate=rest), AXIOMS), f"{name} without {instances[index]}"


@pytest.mark.parametrize("name", ["lora", "row_divisor", "four_terms", "sum_of_products"])
def test_no_instance_can_be_another(name: str) -> None:
    """Terms of an instance exchanged, which proves something else."""
    rule = landmark(name)
    instances = rule.certificate.instances
    for index, instance in enumerate(instances):
        keys, values = zip(*instance.terms, strict=True)
        if len(set(values)) < 2 or instance.axiom.endswith("commutative"):
            continue
        edited = Instance(instance.axiom, tuple(zip(keys, (*values[1:], values[0]), strict=True)), instance.attrs)
        changed = Certificate((*instances[:index], edited, *instances[index + 1 :]))
        assert check(replace(rule, certificate=changed), AXIOMS), str(edited)


def test_a_true_mutant_is_told_apart() -> None:
    rule = landmark("four_terms")
    (swapped,) = (side for side in landmark("four_terms").source)
    true = Mutant("operands", replace(rule, target=(swapped,), certificate=Certificate(())), rule)
    assert examine(true, AXIOMS, prover()) == MutantOutcome.TRUE
    false = Mutant("operator", replace(rule, target=landmark("reciprocal").target, types=landmark("reciprocal").types), rule)
    assert examine(false, AXIOMS, prover()) == MutantOutcome.ILL_TYPED


def test_bytes_are_whole_numbers() -> None:
    """A rule that holds of bytes is true although it asks something of another operand, where floats in their place refute it."""
    (rule,) = (r for r in shipped_rules() if str(r) == "QuantizeLinear[axis=0,to=uint8](DequantizeLinear[axis=0](x, y), y) = x")
    assert any(c.guard.of_values for c in rule.conditions)
    assert examine(Mutant("type", rule, rule), AXIOMS, None) == MutantOutcome.TRUE
    x = rule.target[0]
    false = replace(rule, target=(make("Add", (x, x)),))
    assert examine(Mutant("target", false, rule), AXIOMS, None) == MutantOutcome.REJECTED


def test_a_place_outside_of_a_table_refutes_nothing() -> None:
    """Both sides look up the same places in a table of one entry: at places that it does not have neither has a value."""
    chosen = (r for r in shipped_rules() if "Gather" in str(r) and "x, y, z" in str(r) and str(r).startswith("Gather"))
    rule = next(r for r in chosen if r.types["x"] == parse_type("uint8[m,2,3]"))
    narrow = replace(rule, types={**rule.types, "x": parse_type("uint8[1,2,3]")})
    assert check(narrow, AXIOMS) == []
    assert examine(Mutant("type", narrow, rule), AXIOMS, None) == MutantOutcome.TRUE
    false = replace(narrow, target=(make("Neg", narrow.target),))
    assert examine(Mutant("wrapped", false, rule), AXIOMS, None) == MutantOutcome.REJECTED


def test_a_rule_without_variables_may_cite_what_others_cite() -> None:
    zero = make("Relu", (const(0.0),))
    bare = replace(landmark("lora"), source=(zero,), target=(const(0.0),), types={}, conditions=(), certificate=Certificate(()))
    cited = [m for m in islice(mutants([bare, landmark("lora")], seed=0), 60) if m.kind == "cited" and not m.rule.types]
    assert cited


def test_an_unsound_property_lets_false_rules_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack can fail: with one wrong property the mutant it proves is found to be accepted."""
    (wrong,) = parse_axioms("wrong: Sub(x, y) = Sub(y, x)", "wrong.axioms")
    axioms: dict[str, Axiom] = {**AXIOMS, "wrong": wrong}
    rule = landmark("reciprocal")
    x, y = (term for term in rule.target[0].inputs)
    instance = Instance("wrong", (("x", x), ("y", y)))
    false = replace(
        rule, source=(make("Sub", (x, y)),), target=(make("Sub", (y, x)),), conditions=(), certificate=Certificate((instance,))
    )
    assert examine(Mutant("operands", false, rule), axioms, Prover(axioms, LIMITS)) == MutantOutcome.ACCEPTED
    assert examine(Mutant("operands", false, rule), AXIOMS, prover()) == MutantOutcome.REJECTED
    monkeypatch.setattr(mutations, "mutants", lambda rules, seed: iter([Mutant("operands", false, rule)]))
    tally = attack([rule], axioms, 1, prover=Prover(axioms, LIMITS))
    assert len(tally.accepted) == 1 and tally.false == 1
