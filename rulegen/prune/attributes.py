"""Generalisation of proved rules: values that the proof does not look at become variables, and the checker decides.

Attribute values (strides, pads, axes, ...) become attribute variables, subterms that both sides share become variables.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from mugraph.ops.interp import infer_types
from mugraph.terms.shape import SymDim
from mugraph.terms.term import AttrValue, AttrVar, Term, open_names, rebuild, replace_terms, substitute, var, variables, walk
from rulegen.prove.weakest import weakest_conditions
from rules_db.solving import determined as determine
from rules_db.trust.certificate import Certificate, Instance
from rules_db.trust.check import check, instantiate
from rules_db.trust.condition import Condition
from rules_db.trust.properties import Axiom
from rules_db.trust.rule import Rule

__all__ = ["generalise_attrs", "generalise_numbers", "generalise_terms"]

_Place = tuple[str, str]
"""An attribute's name and the text of its value: together they become one variable wherever they occur."""


def generalise_attrs(rule: Rule, axioms: Mapping[str, Axiom], keep: Collection[str] = (), *, determined: bool = False) -> Rule:
    """The rule with an attribute variable for every value that only passes through its proof.

    Equal values of attributes of one name become one variable, throughout rule and certificate; the checker decides whether
    the proof still stands. All are tried together, then one after another. A variable that neither side alone would bind
    in a match of the other is no use, and stays a value, and so do the attributes named in ``keep``. With ``determined`` it is
    of use where a match of one side tells by the rule's conditions what the other side's variables are.
    """
    places: dict[_Place, AttrValue] = {}
    for term in walk([*rule.source, *rule.target]):
        if term.op not in ("Var", "Const"):
            is_constant = not term.inputs  # whose shape is all that there is to it
            closed = [(name, value) for name, value in term.attrs if is_constant or not _is_open(value)]
            places |= {(name, repr(value)): value for name, value in closed if name not in keep}
    opened = _opened(rule, places, axioms, determined) if places else None
    if opened is not None or len(places) < 2:
        return opened or rule
    chosen: dict[_Place, AttrValue] = {}
    best = rule
    for place, value in places.items():
        opened = _opened(rule, {**chosen, place: value}, axioms, determined)
        if opened is not None:
            best, chosen = opened, {**chosen, place: value}
    return best


def generalise_numbers(rule: Rule, axioms: Mapping[str, Axiom]) -> Rule:
    """The rule with an attribute variable for every floating-point number that only passes through its proof.

    A number is one variable wherever it occurs, in constants and in attributes: the epsilon that is added to a variance is
    that of the normalisation. The checker decides which numbers the proof does look at; a product that it takes of two
    becomes a condition of the rule. All numbers are tried together, then one after another.
    """
    numbers = [v for t in walk([*rule.source, *rule.target]) for _, v in t.attrs if isinstance(v, float)]
    numbers = list(dict.fromkeys(n for n in numbers if math.isfinite(n)))
    opened = _with_numbers(rule, numbers, axioms) if numbers else None
    if opened is not None:
        return opened
    for count in range(len(numbers), 0, -1):
        for chosen in itertools.combinations(numbers, count) if len(numbers) <= _MOST_NUMBERS else ():
            opened = _with_numbers(rule, chosen, axioms)
            if opened is not None:
                return opened
    return rule


_MOST_NUMBERS = 7
"""Of so many different numbers all choices are tried."""


def _with_numbers(rule: Rule, numbers: Sequence[float], axioms: Mapping[str, Axiom]) -> Rule | None:
    """The rule with variables in place of numbers, if it is proved."""
    names = [name for name in (f"number{i or ''}" for i in range(len(numbers) + len(rule.attrs))) if name not in rule.attrs]
    variables = {number: AttrVar(name) for number, name in zip(numbers, names, strict=False)}

    def open_(value: AttrValue) -> AttrValue:
        return variables.get(value, value) if isinstance(value, float) else value

    def side(root: Term) -> Term:
        return rebuild(root, lambda leaf: Term(leaf.op, tuple((k, open_(v)) for k, v in leaf.attrs), (), leaf.out), open_)

    instances = tuple(
        replace(i, terms=tuple((k, side(t)) for k, t in i.terms), attrs=tuple((k, open_(v)) for k, v in i.attrs))
        for i in rule.certificate.instances
    )
    attrs = {**rule.attrs, **{variable.name: number for number, variable in variables.items()}}
    source, target = tuple(map(side, rule.source)), tuple(map(side, rule.target))
    proved = _proved(replace(rule, source=source, target=target, attrs=attrs), instances, axioms, side)
    # A number that another one fixes stays: models hold it rounded, which a match allows for and a condition does not.
    fixed = proved is not None and any(not c.terms() and len(c.open_names()) == 1 for c in proved.conditions)
    return None if fixed else proved


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
        sides = [tuple(replace_terms(root, new) for root in side) for side in (rule.source, rule.target)]
        type_ = infer_types([substitute(subterm, {}, rule.attrs)], rule.types)[substitute(subterm, {}, rule.attrs)]
        declared = {**rule.types, name: type_}
        general = replace(
            rule,
            source=sides[0],
            target=sides[1],
            types={leaf.name: declared[leaf.name] for leaf in variables([*sides[0], *sides[1]])},
            conditions=tuple(
                Condition(c.predicate, tuple(replace_terms(a, new) if isinstance(a, Term) else a for a in c.arguments))
                for c in rule.conditions
            ),
            certificate=Certificate(
                tuple(replace(i, terms=tuple((k, replace_terms(t, new)) for k, t in i.terms)) for i in rule.certificate.instances)
            ),
        )
        if not check(general, axioms):
            rule = general


def _is_open(value: AttrValue) -> bool:
    """Whether a value holds a dimension symbol or a variable already."""
    return isinstance(value, (SymDim, AttrVar)) or (isinstance(value, tuple) and any(map(_is_open, value)))


def _opened(rule: Rule, places: Mapping[_Place, AttrValue], axioms: Mapping[str, Axiom], determined: bool) -> Rule | None:
    """The rule with variables in these places, if it is proved."""
    names: dict[_Place, str] = {}
    for name, text in places:
        same = sum(other == name for other, _ in names)
        names[name, text] = f"{name}{same + 1}" if same else name
    variables = {place: AttrVar(name) for place, name in names.items()}

    def side(roots: Iterable[Term]) -> tuple[Term, ...]:
        return tuple(_replace(root, variables) for root in roots)

    source, target = side(rule.source), side(rule.target)
    attrs = {**rule.attrs, **{names[place]: value for place, value in places.items()}}
    instances = tuple(_instance(instance, axioms[instance.axiom], variables) for instance in rule.certificate.instances)
    opened = replace(rule, source=source, target=target, attrs=attrs)
    proved = _proved(opened, instances, axioms, lambda t: _replace(t, variables))
    return proved if proved is not None and _is_usable(proved, determined) else None


def _is_usable(rule: Rule, determined: bool) -> bool:
    """Whether a side binds the attribute variables of the other one, conditions helping where that is wanted."""
    source, target = (set(_open_in(roots)) for roots in (rule.source, rule.target))
    if source <= target or target <= source:
        return True
    sides = ((source, target), (target, source)) if determined else ()
    return any(wanted <= bound.union(one.name for one in determine(rule.conditions, bound)) for bound, wanted in sides)


def _proved(
    rule: Rule, instances: Sequence[Instance], axioms: Mapping[str, Axiom], open_term: Callable[[Term], Term]
) -> Rule | None:
    """The rule with this proof and the conditions that it needs, if the checker accepts it."""
    try:
        steps = [instantiate(instance, axioms, rule.attrs) for instance in instances]
    except ValueError:
        return None
    wanted = [c for step in steps for c in step.conditions if c.predicate != "typed"]
    conditions = weakest_conditions(wanted, rule.types)
    conditions += [c for c in dict.fromkeys(wanted) if not c.terms() and any(map(_is_open, c.arguments))]
    conditions += [Condition("typed", tuple(map(open_term, c.terms()))) for c in rule.conditions if c.predicate == "typed"]
    certificate = Certificate(tuple(sorted(instances, key=str)))
    proved = replace(rule, conditions=tuple(conditions), certificate=certificate)
    return None if check(proved, axioms) else proved


def _open_in(roots: Iterable[Term]) -> Iterable[str]:
    """Names of the attribute variables of terms, as often as they occur."""
    return (name for term in walk(roots) for _, value in term.attrs for name in open_names(value))


def _replace(root: Term, variables: Mapping[_Place, AttrVar]) -> Term:
    """The term with variables in these places."""
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
        opened = [variables[name, repr(value)] for name in sorted(stands_in.get(key, ())) if (name, repr(value)) in variables]
        attrs.append((key, opened[0] if opened else value))
    return replace(instance, terms=tuple((k, _replace(t, variables)) for k, t in instance.terms), attrs=tuple(attrs))
