"""Options as fields of a frozen value: each says in one place how it is written on a command line, checked, and remembered.

A class of options is a frozen dataclass whose fields are made by :func:`option`::

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Patience(Options):
        rounds: int = option(3, flag=Flag("--rounds", "Searches in a row."), check=AtLeast(1), verdict=same)

The command line (:mod:`rewriter.cli.flags`), the checks and the digest of what a verdict depends on follow from that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from rewriter.reference import InputError

__all__ = [
    "APath",
    "AtLeast",
    "Flag",
    "OneOf",
    "OptionField",
    "check_options",
    "option",
    "option_fields",
    "same",
    "verdict_values",
]

_KEY = "option"

_T = TypeVar("_T")


def same(value: _T) -> _T:
    """The value itself, where that is what a command line or a digest wants."""
    return value


@dataclass(frozen=True, slots=True)
class Flag:
    """An option as it is written on a command line.

    Attributes:
        name: such as ``--budget``, or ``--kernels/--no-kernels`` for a choice of two.
        help: what it does, in a sentence.
        metavar: stands for the value in the help.
        choices: the words that are admitted, where the check does not name them.
        is_path: the word is a path.
        is_repeatable: it may be given several times; ``read`` gets all words.
        alone: the value where the flag stands without one.
        negates: writing the flag makes the option false.
        read: makes the option's value of the word. Raises InputError.
        group: the heading under which a help lists it.
    """

    name: str
    help: str | None = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    is_path: bool = False
    is_repeatable: bool = False
    alone: str | None = None
    negates: bool = False
    read: Callable[[Any], Any] = same
    group: str = ""


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A finite number that is not below a bound.

    Attributes:
        least: the bound.
        refusal: the message where it is not kept, with values of options by name in braces; a default names the field.
    """

    least: float
    refusal: str = ""

    def problem(self, name: str, values: Mapping[str, Any]) -> str:
        """Why the value of a field is refused; empty where it is not."""
        if math.isfinite(values[name]) and values[name] >= self.least:
            return ""
        return self.refusal.format_map(values) or f"{name} {values[name]}: give a finite number from {self.least} on"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]

    def problem(self, name: str, values: Mapping[str, Any]) -> str:
        """Why the value of a field is refused; empty where it is not."""
        return "" if values[name] in self.words else f"unknown {name} '{values[name]}': use {', '.join(self.words)}"


@dataclass(frozen=True, slots=True)
class APath:
    """A :class:`pathlib.Path`, or nothing."""

    def problem(self, name: str, values: Mapping[str, Any]) -> str:
        """Why the value of a field is refused; empty where it is not."""
        value = values[name]
        return "" if value is None or isinstance(value, Path) else f"{name} {value!r}: give a pathlib.Path"


@dataclass(frozen=True, slots=True)
class OptionField:
    """A field of a class of options.

    Attributes:
        name, default: the field's.
        flag: as a command line has it; ``None`` where it has not.
        check: refuses values.
        verdict: makes the value that stands, as text, in the digest of a verdict; ``None`` where verdicts do not depend on it.
    """

    name: str
    default: Any
    flag: Flag | None
    check: AtLeast | OneOf | APath | None
    verdict: Callable[[Any], object] | None


def option(
    default: _T,
    *,
    flag: Flag | None = None,
    check: AtLeast | OneOf | APath | None = None,
    verdict: Callable[[Any], object] | None = None,
) -> _T:
    """A field of a class of options; see :class:`OptionField`."""
    return field(default=default, metadata={_KEY: (flag, check, verdict)})


def option_fields(options: Any) -> Iterator[OptionField]:
    """The fields of options, or of a class of options, in the order in which they are declared."""
    for declared in fields(options):
        yield OptionField(declared.name, declared.default, *declared.metadata[_KEY])


def check_options(options: Any) -> None:
    """Raises InputError for the first field whose value is not what its check asks for."""
    values = {item.name: getattr(options, item.name) for item in option_fields(options)}
    for item in option_fields(options):
        if item.check is not None and (problem := item.check.problem(item.name, values)):
            raise InputError(problem)


def verdict_values(options: Any) -> dict[str, tuple[object, bool]]:
    """The fields that verdicts depend on: the value of each in canonical form, and whether it is the default."""
    values = {}
    for item in option_fields(options):
        if item.verdict is not None:
            value = item.verdict(getattr(options, item.name))
            values[item.name] = value, value == item.verdict(item.default)
    return values
