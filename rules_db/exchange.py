"""The text form of rules: files of readable blocks that round-trip byte for byte.

The grammar of a block stands in :mod:`rules_db.trust.rule`. Blocks are separated by empty lines; ``#`` starts a comment line. The
identity in the header is verified against the content, so that a hand-edited rule cannot pass for the old one. A rule whose
target is a graph-defined kernel has its μGraph in a line of its own, as JSON; the target names it by its digest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import cast

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, kernel_of
from mugraph.blocks.statements import InvalidBlock
from mugraph.blocks.text import kernel_from_json, kernel_to_json
from mugraph.blocks.validity import check_kernel
from mugraph.ops import get_operator
from mugraph.terms.shape import TensorType
from mugraph.terms.term import AttrValue, Term, format_term, format_value, open_names, rebuild, walk
from mugraph.terms.text import Parser, TextError, split_top
from rules_db.trust.certificate import Certificate
from rules_db.trust.condition import Condition, parse_condition
from rules_db.trust.rule import FloatClass, Rule, Side

__all__ = [
    "FIELDS",
    "RuleTextError",
    "format_rule",
    "format_rules",
    "parse_conditions",
    "parse_rule",
    "parse_rules",
    "read_fields",
    "read_rules",
    "read_text",
    "split_rules",
]


class RuleTextError(ValueError):
    """A rule file cannot be read; the message names file, line and the way out."""


def format_rule(rule: Rule) -> str:
    """The block of a rule, ending with a newline."""
    lines = [
        f"rule {rule.id}",
        "  let    "
        + " ".join([*(f"{k}:{t}" for k, t in rule.types.items()), *(f"${k}:{format_value(v)}" for k, v in rule.attrs.items())]),
        *(f"  kernel {_kernel_text(kernel)}" for kernel in _kernels([*rule.source, *rule.target])),
        "  source " + "; ".join(map(format_term, rule.source)),
        "  target " + "; ".join(map(format_term, rule.target)),
    ]
    if rule.conditions:
        lines.append("  when   " + ", ".join(map(str, rule.conditions)))
    lines += [f"  class  {rule.float_class}", f"  proof  {rule.certificate}".rstrip()]
    if rule.provenance:
        lines.append("  from   " + " ".join(f"{key}={value}" for key, value in rule.provenance.items()))
    return "\n".join(lines) + "\n"


def format_rules(rules: Iterable[Rule]) -> str:
    """The text of a file of rules."""
    return "\n".join(map(format_rule, rules))


def _kernels(roots: Iterable[Term]) -> list[Kernel]:
    """The graph-defined kernels of terms, in order."""
    return list(dict.fromkeys(kernel_of(term.attrs) for term in walk(roots) if term.op == KERNEL))


def _kernel_text(kernel: Kernel) -> str:
    return json.dumps(kernel_to_json(kernel), separators=(",", ":"), ensure_ascii=False)


def _kernel(text: str) -> Kernel:
    """A valid μGraph."""
    try:
        kernel = kernel_from_json(json.loads(text))
        check_kernel(kernel)
    except (ValueError, KeyError, TypeError, TextError, InvalidBlock, RecursionError) as problem:
        raise TextError(f"a μGraph that cannot be read: {problem}") from None
    return kernel


@lru_cache(maxsize=1 << 10)
def _side(text: str) -> Side:
    parser = Parser(text)
    roots = [parser.term()]
    while parser.accept(";"):
        roots.append(parser.term())
    parser.end()
    return tuple(roots)


def _samples(text: str) -> tuple[dict[str, TensorType], dict[str, AttrValue]]:
    """Sample types of variables and sample values of attribute variables."""
    types, attrs = _declared(text)
    return dict(types), dict(attrs)


@lru_cache(maxsize=1 << 10)
def _declared(text: str) -> tuple[Mapping[str, TensorType], Mapping[str, AttrValue]]:
    parser = Parser(text)
    types: dict[str, TensorType] = {}
    attrs: dict[str, AttrValue] = {}
    while parser.kind != "end":
        is_attr = parser.accept("$")
        name = parser.name("a variable")
        if name in (attrs if is_attr else types):
            raise TextError(f"variable '{name}' is declared twice")
        parser.expect(":")
        if is_attr:
            attrs[name] = parser.value()
        else:
            types[name] = parser.type()
    return types, attrs


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Reads guards as the line ``when`` of a rule has them. Raises TextError, ValueError and KeyError."""
    return tuple(map(_condition, split_top(text)))


@lru_cache(maxsize=1 << 12)
def _condition(text: str) -> Condition:
    """One guard; the rules that ship ask each of theirs six times, about."""
    parser = Parser(text)
    condition = parse_condition(parser)
    parser.end()
    for problem in condition.wrong_arguments():
        raise TextError(problem)
    return condition


def _provenance(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split()]
    if any(not mark for _, mark, _ in pairs):
        raise TextError("expected key=value pairs")
    return {key: value for key, _, value in pairs}


FIELDS: Mapping[str, Callable[[str], object]] = {
    "let": _samples,
    "kernel": _kernel,
    "source": _side,
    "target": _side,
    "when": parse_conditions,
    "class": FloatClass,
    "proof": Certificate.parse,
    "from": _provenance,
}
_REQUIRED = ("let", "source", "target", "class", "proof")


_LONGEST_MESSAGE = 400
"""Most characters of what is wrong with a line: a text from outside may hold words of any length."""


def _shortened(text: object) -> str:
    """A message, cut where it repeats too much of what was read."""
    message = str(text)
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}..."


def split_rules(text: str) -> Iterator[tuple[int, str]]:
    """The blocks of a file, unread, each with the number of its first line. What is comment alone is no block."""
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.strip():
            block.append(line)
        else:
            if not all(other.startswith("#") for other in block):
                yield number - len(block), "\n".join(block) + "\n"
            block = []


def _check_names(roots: Iterable[Term], types: dict[str, TensorType], attrs: dict[str, AttrValue]) -> None:
    for term in walk(roots):
        if term.is_var:
            if term.name not in types:
                raise TextError(f"variable '{term.name}' is not declared by 'let'")
        elif term.op != "Const":
            get_operator(term.op).check_attributes(term.attrs)
        for _, value in term.attrs:
            for name in open_names(value):
                if name not in attrs:
                    raise TextError(f"attribute variable '${name}' is not declared by 'let'")


def _with_kernel(roots: Side, kernel: Kernel | None) -> Side:
    """Terms with the kernel of the line 'kernel' in the place of its digest."""
    named = {term.attr("digest") for term in walk(roots) if term.op == KERNEL}
    for digest in named:
        if kernel is None or digest != kernel.text_name:
            raise TextError(f"the μGraph {digest} is not the one in the line 'kernel'")
    if not named:
        return roots
    return tuple(rebuild(root, lambda leaf: leaf, lambda value: kernel if value in named else value) for root in roots)


def _lines(block: str, file: str, line: int) -> tuple[int, str, list[tuple[int, str]]]:
    """The number of a block's first line, the identity in it, and the others that hold something. Raises RuleTextError."""
    (number, header), *others = [
        (number, text) for number, text in enumerate(block.splitlines(), line) if text.strip() and not text.startswith("#")
    ] or [(line, "")]
    word, _, identity = header.partition(" ")
    if word != "rule" or not identity.strip():
        raise RuleTextError(f"{file}:{number}: expected 'rule ID', not {header[:40]!r}")
    return number, identity.strip(), others


def read_fields(
    block: str, file: str, line: int, readers: Mapping[str, Callable[[str], object]], *, has_kernel: bool = True
) -> tuple[int, str, dict[str, object]]:
    """The number of a block's first line, the identity in it, and its fields by name, each as its reader reads it.

    Args:
        readers: of all :data:`FIELDS`.
        has_kernel: the kernel is read, and stands in the sides then, whose names are checked; else these name it by its digest.

    Raises:
        RuleTextError: a line cannot be read, or one is missing.
    """
    number, identity, lines = _lines(block, file, line)
    fields: dict[str, object] = {}
    for line_number, text in lines:
        name, _, value = text.strip().partition(" ")
        if name not in readers or name in fields:
            problem = "a second" if name in fields else "unknown"
            raise RuleTextError(f"{file}:{line_number}: {problem} field '{_shortened(name)}'; a rule has {', '.join(FIELDS)}")
        try:
            fields[name] = readers[name](value.strip())
            if name in ("source", "target") and has_kernel:
                fields[name] = _with_kernel(fields[name], fields.get("kernel"))  # type: ignore[arg-type]
                if "let" in fields:
                    _check_names(fields[name], *fields["let"])  # type: ignore[arg-type, misc]
        except (TextError, KeyError, ValueError) as reason:
            raise RuleTextError(f"{file}:{line_number}: {_shortened(reason.args[0])}") from None
    missing = [name for name in _REQUIRED if name not in fields]
    if missing:
        raise RuleTextError(f"{file}:{number}: rule {_shortened(identity)} lacks {', '.join(missing)}; is the file truncated?")
    return number, identity, fields


def parse_rule(block: str, file: str = "<text>", line: int = 1, *, is_known: bool = False) -> Rule:
    """Reads one block, which begins at that line of the file. Raises :class:`RuleTextError`, as :func:`parse_rules` does.

    Args:
        is_known: this very text was read before, so that the identity in its header is that of its content.
    """
    readers = {**FIELDS, "proof": Certificate.known} if is_known else FIELDS
    number, identity, fields = read_fields(block, file, line, readers)
    types, attrs = cast(tuple[dict[str, TensorType], dict[str, AttrValue]], fields["let"])
    rule = Rule(
        fields["source"],  # type: ignore[arg-type]
        fields["target"],  # type: ignore[arg-type]
        types,
        fields.get("when", ()),  # type: ignore[arg-type]
        fields["class"],  # type: ignore[arg-type]
        fields["proof"],  # type: ignore[arg-type]
        fields.get("from", {}),  # type: ignore[arg-type]
        attrs,
    )
    if is_known:
        vars(rule)["id"] = identity  # where a cached property keeps what it found
    elif rule.id != identity:
        raise RuleTextError(
            f"{file}:{number}: the content of rule {_shortened(identity)} has the identity {rule.id}; "
            "if the change is meant, write that identity and run 'rulegen audit'"
        )
    return rule


def parse_rules(text: str, file: str = "<text>") -> list[Rule]:
    """Reads the text of a file. Nothing is certified here: :func:`rules_db.trust.check.check` does that.

    Raises:
        RuleTextError: with file and line of the first block that cannot be read.
    """
    return [parse_rule(block, file, line) for line, block in split_rules(text)]


def read_text(path: str | Path) -> str:
    """The text of a file of rules. Raises :class:`RuleTextError` where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8 text"
        raise RuleTextError(
            f"{path}: cannot read the rules ({reason}); give a .rules file, such as 'rulegen grow --out' writes"
        ) from None


def read_rules(path: str | Path) -> list[Rule]:
    """Reads a file of rules. Raises :class:`RuleTextError`, also where the file cannot be read."""
    return parse_rules(read_text(path), str(path))
