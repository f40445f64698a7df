"""The forms that a form of a composite operator has: what is left of it, or what its operands are made of."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mugraph.matching import TermMatching
from mugraph.ops import traits_of
from mugraph.ops.interp import infer_types, plainer
from mugraph.ops.traits import Movement
from mugraph.terms.shape import DataType, Dim, Shape, ShapeError, TensorType, Undecided
from mugraph.terms.term import Term, const, make, make_attrs, replace_terms, substitute, var, variables, walk
from rulegen.mine.numbers import is_sample
from rulegen.prove.egraph import EGraph
from rulegen.prove.language import Language
from rulegen.prove.search import ProofSearch
from rulegen.prove.selection import Laws
from rulegen.spell.definition import Definition, assumptions, is_unwritten
from rulegen.spell.vocabulary import named, operators_of, smallest, through, written
from rules_db.trust.condition import Condition
from rules_db.trust.properties import Axiom, load_axioms
from rules_db.trust.rule import Side

__all__ = ["variants"]


def variants(form: Definition) -> Iterator[Definition]:
    """The form, and what is left of it where a factor is one, an operand is made of others, or the result is taken as rows."""
    if through(form.operator):
        whole = _through(form)
        yield whole
        yield from _apart(whole)
        return
    for scaled in (form, *_without_factors(form)):
        for moved in (scaled, *(_moved(form) if scaled is form else ())):
            for shown in map(_provable, _shown(moved)):
                yield shown
                yield from _repeated(shown)
                yield from _rows(shown)
                yield from _doubled(shown)


# Runtimes' operators in terms of others


def _through(form: Definition) -> Definition:
    """The form in terms of those of a runtime's operators that define it."""
    graph, roots = _defined(form, [form.operator])
    inner = through(form.operator)
    terms = smallest(graph, lambda op: written(op) or op in inner)
    return replace(form, plain=tuple(terms[graph.find(root)] for root in roots))


def _provable(form: Definition) -> Definition:
    """The form with a program that properties say to be equal to it, where it takes positions that its program has not."""
    if not any(map(is_unwritten, walk(form.roots))):
        return form
    graph, nodes = _defined(form, named(form.operator))
    terms = smallest(graph, written)
    if any(graph.find(node) not in terms for node in nodes):
        return form
    return replace(form, plain=tuple(terms[graph.find(node)] for node in nodes))


def _apart(form: Definition) -> Iterator[Definition]:
    """Forms with operands put together of those parts into which the program splits what is computed of them.

    What stands for each row alike may be zero in some of them.
    """
    splits = [term for term in walk(form.plain) if term.op == "Split" and term.attr("axis") == -1]
    if not splits:
        return
    sizes = splits[0].attr("sizes")
    total: Dim = 0
    for size in sizes:
        total = total + size
    whole: dict[Term, Term] = {}
    vectors: list[Term] = []
    types = dict(form.types)
    for name in [name for name, type_ in form.types.items() if type_.shape[-1:] == (total,)]:
        type_ = types.pop(name)
        parts = [var(f"{name}_{i}") for i in range(len(sizes))]
        types |= {part.name: TensorType(type_.dtype, (*type_.shape[:-1], size)) for part, size in zip(parts, sizes, strict=True)}
        whole[var(name)] = make("Concat", parts, {"axis": -1})
        vectors += parts if type_.rank == 1 else ()
    if whole:
        joined = replace(form, roots=tuple(replace_terms(root, whole) for root in form.roots), plain=(), types=types)
        for chosen in itertools.chain.from_iterable(itertools.combinations(vectors, n) for n in range(len(vectors) + 1)):
            zeros = {part: make("Expand", [const(0.0)], {"shape": types[part.name].shape}) for part in chosen}
            left = {name: type_ for name, type_ in types.items() if var(name) not in zeros}
            yield _through(replace(joined, roots=tuple(replace_terms(root, zeros) for root in joined.roots), types=left))


# Operands


def _moved(form: Definition) -> Iterator[Definition]:
    """Forms with operands as they are after what the program does first with several alike: heads apart, an axis more."""
    chains = {name: _chain(form.plain, var(name)) for name in form.types}
    for length in itertools.count(1):
        looks = {name: tuple((t.op, *(v for k, v in t.attrs if k != "shape")) for t in c[:length]) for name, c in chains.items()}
        groups: dict[object, list[str]] = {}
        for name, look in looks.items():
            if len(look) == length:
                groups.setdefault(look, []).append(name)
        alike = [names for names in groups.values() if len(names) > 1]
        if not groups:
            return
        for names in alike:
            types, inferred = dict(form.types), infer_types(form.plain, form.types)
            back, after = dict[Term, Term](), dict[Term, Term]()
            for name in names:
                term = var(name)
                for step in reversed(chains[name][:length]):
                    term = _undone(term, step, inferred)
                types[name] = inferred[chains[name][length - 1]]
                back[var(name)], after[chains[name][length - 1]] = term, var(name)
            roots = tuple(replace_terms(root, back) for root in form.roots)
            yield replace(form, roots=roots, plain=tuple(replace_terms(root, after) for root in form.plain), types=types)


def _chain(plain: Side, term: Term) -> list[Term]:
    """The movements that the program makes of a term, one after the other, each of the whole result of the one before."""
    chain: list[Term] = []
    while True:
        users = [user for user in walk(plain) if term in user.inputs]
        if len(users) != 1 or not _is_undone(users[0].op) or term in plain:
            return chain
        chain += users
        (term,) = users


def _is_undone(operator: str) -> bool:
    """Whether another movement takes one back: no entry is lost or repeated."""
    return traits_of(operator).movement in (Movement.VIEW, Movement.PERMUTATION)


def _is_beside(operator: str) -> bool:
    """Whether an operator puts tensors beside each other, or is taken back by another movement."""
    return traits_of(operator).movement is Movement.CONCATENATION or _is_undone(operator)


def _undone(term: Term, step: Term, types: dict[Term, TensorType]) -> Term:
    """A movement taken back."""
    if step.op == "Transpose":
        perm = step.attr("perm")
        return make("Transpose", [term], {"perm": tuple(perm.index(i) for i in range(len(perm)))})
    if step.op == "Squeeze":
        return make("Unsqueeze", [term], {"axes": step.attr("axes")})
    if step.op == "Unsqueeze":
        return _squeezed(term, step.attr("axes"))
    before, drop = types[step.inputs[0]].shape, step.attr("drop")
    return make("Reshape", [term], {"drop": len(step.attr("shape")), "shape": before[len(before) - drop :]})


def _squeezed(term: Term, axes: tuple[int, ...]) -> Term:
    """A term without axes of one entry, in one operator where it lacks others of its operand already."""
    if term.op != "Squeeze":
        return make("Squeeze", [term], {"axes": axes})
    gone = term.attr("axes")
    left = itertools.islice((axis for axis in itertools.count(-1, -1) if axis not in gone), -min(axes))
    return make("Squeeze", term.inputs, {"axes": tuple(sorted({*gone, *(axis for i, axis in enumerate(left, 1) if -i in axes)}))})


def _doubled(form: Definition) -> Iterator[Definition]:
    """The form with operands that the program puts beside themselves as they are then: a table of which the half is enough.

    What only has other axes in front is put beside itself like the operand.
    """
    graph, _ = _defined(form, named(form.operator))
    found: dict[str, int] = {}
    for node, operands in enumerate(graph.operands):
        op, attrs, _ = graph.language.ops[graph.op[node]]
        if op == "Concat" and len(operands) == 2 and len(set(map(graph.find, operands))) == 1:
            axis, term = dict(attrs)["axis"], graph.term(graph.best[graph.find(operands[0])])
            inferred = infer_types([term], form.types)
            while _is_undone(term.op) and inferred[term.inputs[0]].shape[axis:] == inferred[term].shape[axis:]:
                (term,) = term.inputs
            if term.is_var:
                found.setdefault(term.name, axis)
    if not found:
        return
    types, whole = dict(form.types), dict[Term, Term]()
    for name, axis in found.items():
        shape = types[name].shape
        half = {"axes": (axis,), "starts": (0,), "ends": (shape[axis],), "steps": (1,)}
        whole[var(name)] = make("Slice", [var(name)], half)
        doubled = tuple(2 * d if i - len(shape) == axis else d for i, d in enumerate(shape))
        types[name] = TensorType(types[name].dtype, doubled)
    roots, plain = (tuple(replace_terms(root, whole) for root in side) for side in (form.roots, form.plain))
    repeats = tuple(Condition("repeats", (var(name), axis)) for name, axis in found.items())
    made = replace(form, roots=roots, plain=plain, types=types, assumed=(*form.assumed, *repeats))
    yield _provable(made)


def _shown(form: Definition) -> Iterator[Definition]:
    """The form; or, where the program has what no model has, as a mask of positions, forms with an operand that says the same."""
    if not any(map(is_unwritten, walk(form.plain))):
        yield form
        return
    for axiom in load_axioms().values():
        further = [v for v in variables([axiom.left]) if v not in variables([axiom.right])]
        says = any(map(is_unwritten, walk([axiom.right]))) and not any(map(is_unwritten, walk([axiom.left])))
        if not further or not says or not all(map(written, operators_of([axiom.left]))):
            continue
        for term in walk(form.plain):
            matching = TermMatching()
            for _ in matching.matches([(axiom.right, term)]) if term.op == axiom.right.op else ():
                yield from _with_operands(form, axiom, further, term, matching)


def _with_operands(
    form: Definition, axiom: Axiom, further: Sequence[Term], term: Term, matching: TermMatching
) -> Iterator[Definition]:
    """The form with what a property says in place of a term, and operands for the variables that are the property's alone: of
    the sizes that it says, numbers or truth values, as they fit."""
    new = {variable.name: var(f"x{i}") for i, variable in enumerate(further, len(form.types))}
    attrs = {key[1:]: value for key, value in matching.values.items()}
    terms = {variable.name: bound for variable, bound in matching.terms.items()} | new
    type_ = infer_types(form.plain, form.types)[term]
    asked = [c.substitute(terms, attrs) for c in axiom.conditions]
    shapes: dict[str, Shape] = {}
    for operand in new.values():
        sizes: dict[Any, Any] = {
            c.arguments[1]: c.arguments[2] for c in asked if c.predicate == "dim" and c.arguments[0] is operand
        }
        shapes[operand.name] = tuple(sizes.get(i - type_.rank, 1) for i in range(type_.rank)) if sizes else ()
    plain = tuple(replace_terms(root, {term: substitute(axiom.left, terms, attrs)}) for root in form.plain)
    for dtypes in itertools.product((type_.dtype, DataType.BOOL), repeat=len(new)):
        types = form.types | {name: TensorType(dtype, shape) for (name, shape), dtype in zip(shapes.items(), dtypes, strict=True)}
        with contextlib.suppress(ShapeError, Undecided):
            infer_types(plain, types)
            yield replace(form, plain=plain, types=types, assumed=(*form.assumed, *(c for c in asked if c.guard.of_values)))


def _defined(form: Definition, operators: Collection[str]) -> tuple[EGraph, list[int]]:
    """An e-graph of a form and of what properties define these operators by, under what it assumes; and its outputs."""
    language = Language()
    laws = Laws(language)
    predicates = {condition.predicate for condition in form.assumed}
    for axiom in load_axioms().values():
        shows = any(map(is_unwritten, walk([axiom.left]))) and all(map(written, operators_of([axiom.left])))
        undoes = axiom.right.is_var and all(map(_is_undone, operators_of([axiom.left])))
        told = axiom.left.op in operators or predicates & {c.predicate for c in axiom.conditions}
        moves = predicates and all(map(_is_beside, operators_of([axiom.left, axiom.right])))
        if shows or undoes or told or moves:
            laws.add(axiom)
    graph = EGraph(language)
    nodes = [node for term in (*form.roots, *form.plain) if (node := graph.add_term(term, form.types)) is not None]
    assumed = assumptions(graph, form)
    ProofSearch(graph, laws, (), assumed=assumed).saturate(_SIZE, _NODES, float("inf"))
    return graph, nodes[: len(form.roots)]


_SIZE, _NODES = 100, 1000
"""Operators of a tree and nodes of an e-graph: more than definitions have, step by step."""


# What is left


def _without_factors(form: Definition) -> Iterator[Definition]:
    """Forms in which a number by which the plain program multiplies is one."""
    for name, value in form.roots[0].attrs:
        if is_sample(value):
            roots = tuple(Term(r.op, make_attrs({**dict(r.attrs), name: 1.0}), r.inputs, r.out) for r in form.roots)
            plain = plainer(roots, form.types)
            products = {t: t.inputs[0] for t in walk(plain) if t.op == "Mul" and t.inputs[1] == const(1.0)}
            shorter = tuple(replace_terms(root, products) for root in plain)
            if len(set(walk(shorter))) < len(set(walk(form.plain))):
                yield replace(form, roots=roots, plain=shorter)


def _repeated(form: Definition) -> Iterator[Definition]:
    """Forms with an operand that is repeated along its last axis but one, where it is one already along another: a mask."""
    for name, type_ in form.types.items():
        shape = type_.shape
        users = {term.op for term in walk(form.plain) if var(name) in term.inputs}
        is_assumed = any(var(name) in condition.arguments for condition in form.assumed)
        if len(shape) < 2 or 1 not in shape[:-2] or shape[-2] == 1 or users != {"Add"} or is_assumed:
            continue
        narrow = TensorType(type_.dtype, (*shape[:-2], 1, shape[-1]))
        whole = {var(name): make("Expand", [var(name)], {"shape": shape})}
        roots, types = tuple(replace_terms(root, whole) for root in form.roots), {**form.types, name: narrow}
        with contextlib.suppress(ShapeError, Undecided):
            if [infer_types(form.plain, types)[r] for r in form.plain] == [
                infer_types(form.plain, form.types)[r] for r in form.plain
            ]:
                yield replace(form, roots=roots, types=types)


def _rows(form: Definition) -> Iterator[Definition]:
    """The form as a matrix of all rows, where the plain program ends by giving its result a shape."""
    (root, *others), (plain, *_) = form.roots, form.plain
    shape = infer_types([plain], form.types)[plain].shape
    if not others and len(shape) == 3 and traits_of(plain.op).movement is Movement.VIEW:
        attrs = {"drop": 3, "shape": (shape[0] * shape[1], shape[2])}
        yield replace(form, roots=(make(plain.op, [root], attrs),), plain=(make(plain.op, [plain], attrs),))
