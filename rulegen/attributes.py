"""Generalisation of proved rules: what the proof does not care for becomes a variable, and the checker decides.

Attribute values (strides, pads, axes, ...) become attribute variables, subterms that both sides share become variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mugraph.interp import infer_types
from mugraph.node import AttrValue, AttrVar, Term, open_names, substitute, var, variables, walk
from mugraph.shape import SymDim
from rulegen.certify.prover import weakest
from rulegen.prune import replace as substitute_terms
from rules_db.axioms import Axiom
from rules_db.certificate import Certificate, Instance
from rules_db.check import check, instantiate
from rules_db.condition import Condition
from rules_db.rule import Rule

__all__ = ["generalise_attrs", "generalise_terms"]

_Place = tuple[str, str]
"""An attribute's name and the text of its value: what becomes one variable wherever it occurs."""


def generalise_attrs(rule: Rule, axioms: Mapping[str, Axiom]) -> Rule:
    """The rule with an attribute variable for every value that only passes through its proof.

    Equal values of attributes of one name become one variable, throughout rule and certificate; the checker decides whether
    the proof still stands. All are tried together, then one after another. A variable that neither side alone would bind
    in a match of the other is no use, and stays a value.
    """
    places: dict[_Place, AttrValue] = {}
    for term in walk([*rule.source, *rule.target]):
        if term.op not in ("Var", "Const"):
            is_constant = not term.inputs  # whose shape is all that is known of it
            places |= {(name, repr(value)): value for name, value in term.attrs if is_constant or not _is_open(value)}
    opened = _opened(rule, places, axioms) if places else None
    if opened is not None or len(places) < 2:
        return opened or rule
    chosen: dict[_Place, AttrValue] = {}
    best = rule
    for place, value in places.items():
        opened = _opened(rule, {**chosen, place: value}, axioms)
        if opened is not None:
            best, chosen = opened, {**chosen, place: value}
    return best


def generalise_terms(rule: Rule, axioms: Mapping[str, Axiom]) -> Rule:
    """The rule with a variable for every subterm that its sides share, as far as the proof stands.

    Conditions are part of the rule here: Relu(c) = c for a constant c that is not negative becomes Relu(x) = x for every x
    that is not negative.
    """
    tried: set[Term] = set()
    while True:
        shared = set(walk(rule.source)) & set(walk(rule.target))
        shared = {t for t in shared if not t.is_var and t.op != "Const" and t not in tried}
        if not shared:
            return rule
        subterm = max(shared, key=lambda t: (t.size, t.digest))
        tried.add(subterm)
        name = next(n for n in (f"t{i}" for i in range(len(rule.types) + 1)) if n not in rule.types)
        new = {subterm: var(name)}
        sides = [tuple(substitute_terms(root, new) for root in side) for side in (rule.source, rule.target)]
        type_ = infer_types([substitute(subterm, {}, rule.attrs)], rule.types)[substitute(subterm, {}, rule.attrs)]
        declared = {**rule.types, name: type_}
        general = replace(
            rule,
            source=sides[0],
            target=sides[1],
            types={leaf.name: declared[leaf.name] for leaf in variables([*sides[0], *sides[1]])},
            conditions=tuple(
                Condition(c.predicate, tuple(substitute_terms(a, new) if isinstance(a, Term) else a for a in c.arguments))
                for c in rule.conditions
            ),
            certificate=Certificate(
                tuple(
                    replace(i, terms=tuple((k, substitute_terms(t, new)) for k, t in i.terms)) for i in rule.certificate.instances
                )
            ),
        )
        if not check(general, axioms):
            rule = general


def _is_open(value: AttrValue) -> bool:
    """Whether a value holds a dimension symbol or a variable already."""
    return isinstance(value, (SymDim, AttrVar)) or (isinstance(value, tuple) and any(map(_is_open, value)))


def _opened(rule: Rule, places: Mapping[_Place, AttrValue], axioms: Mapping[str, Axiom]) -> Rule | None:
    """The rule with variables in these places, if it is proved."""
    names: dict[_Place, str] = {}
    for name, text in places:
        same = sum(other == name for other, _ in names)
        names[name, text] = f"{name}{same + 1}" if same else name
    variables = {place: AttrVar(name) for place, name in names.items()}

    def side(roots: Iterable[Term]) -> tuple[Term, ...]:
        return tuple(_replace(root, variables) for root in roots)

    source, target = side(rule.source), side(rule.target)
    bound = [set(_open_in(roots)) for roots in (source, target)]
    if not (bound[0] <= bound[1] or bound[1] <= bound[0]):
        return None
    attrs = {names[place]: value for place, value in places.items()}
    instances = tuple(_instance(instance, axioms[instance.axiom], variables) for instance in rule.certificate.instances)
    try:
        wanted = [c for instance in instances for c in instantiate(instance, axioms, attrs).conditions if c.predicate != "typed"]
    except ValueError:
        return None
    conditions = weakest(wanted, rule.types)
    conditions += [c for c in dict.fromkeys(wanted) if not c.terms() and any(map(_is_open, c.arguments))]
    conditions += [Condition("typed", side(c.terms())) for c in rule.conditions if c.predicate == "typed"]
    certificate = Certificate(tuple(sorted(instances, key=str)))
    opened = replace(rule, source=source, target=target, conditions=tuple(conditions), certificate=certificate, attrs=attrs)
    return None if check(opened, axioms) else opened


def _open_in(roots: Iterable[Term]) -> Iterable[str]:
    return (name for term in walk(roots) for _, value in term.attrs for name in open_names(value))


def _replace(root: Term, variables: Mapping[_Place, AttrVar]) -> Term:
    done: dict[Term, Term] = {}
    for term in walk([root]):
        if term.op in ("Var", "Const"):
            done[term] = term
        else:
            attrs = tuple((name, variables.get((name, repr(value)), value)) for name, value in term.attrs)
            done[term] = Term(term.op, attrs, tuple(done[i] for i in term.inputs), term.out)
    return done[root]


def _instance(instance: Instance, axiom: Axiom, variables: Mapping[_Place, AttrVar]) -> Instance:
    """The instance with variables for its terms' attributes and for the values that stand in attributes of these names."""
    stands_in: dict[str, set[str]] = {}
    cited = [term for condition in axiom.conditions for term in condition.terms()]
    for term in walk([axiom.left, axiom.right, *cited]):
        for name, value in term.attrs:
            if isinstance(value, AttrVar):
                stands_in.setdefault(value.name, set()).add(name)
    attrs = []
    for key, value in instance.attrs:
        found = [variables[name, repr(value)] for name in sorted(stands_in.get(key, ())) if (name, repr(value)) in variables]
        attrs.append((key, found[0] if found else value))
    return replace(instance, terms=tuple((k, _replace(t, variables)) for k, t in instance.terms), attrs=tuple(attrs))
