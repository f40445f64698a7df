"""Flags of a command made from the fields of a class of options (:mod:`rewriter.run.fields`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from rewriter.run.fields import AtLeast, OneOf, OptionField, option_fields

__all__ = ["GroupedCommand", "GroupedOption", "flags", "values_of_flags"]

_OTHER = "Help"
"""The heading of options without one."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


class GroupedOption(click.Option):
    """An option that the help lists under a heading."""

    def __init__(self, *args: Any, group: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help lists options under headings, in the order in which these first occur."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context)) is not None:
                groups.setdefault(getattr(parameter, "group", "") or _OTHER, []).append(record)
        for heading in sorted(groups, key=lambda heading: heading == _OTHER):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])


def flags(options: type, only: Collection[str] | None = None) -> Callable[[_Command], _Command]:
    """A decorator that gives a command the flags of a class of options, in the order of its fields.

    The command gets what was written as keyword arguments by field; :func:`values_of_flags` reads them.

    Args:
        only: names of the fields to take; all by default.
    """

    def decorated(command: _Command) -> _Command:
        for item in reversed(list(option_fields(options))):  # click lists first what was added last
            if item.flag is not None and (only is None or item.name in only):
                command = click.option(item.flag.name, item.name, **_click_settings(item))(command)
        return command

    return decorated


def values_of_flags(options: type, written: Mapping[str, Any]) -> dict[str, Any]:
    """The values of fields for what was written.

    Raises:
        InputError: words that a field cannot be read from.
    """
    values = {}
    for item in option_fields(options):
        if item.flag is not None and item.name in written:
            word = written[item.name]
            values[item.name] = not word if item.flag.negates else item.flag.read(word)
    return values


def _click_settings(item: OptionField) -> dict[str, Any]:
    """How click calls what a field says of its flag."""
    flag = item.flag
    assert flag is not None
    settings: dict[str, Any] = {"help": flag.help, "metavar": flag.metavar, "cls": GroupedOption, "group": flag.group}
    choices = flag.choices or (item.check.words if isinstance(item.check, OneOf) else ())
    if flag.is_path:
        settings["type"] = click.Path(path_type=Path)
    elif choices:
        settings["type"] = click.Choice(choices)
    elif isinstance(item.check, AtLeast):
        in_range = click.IntRange if isinstance(item.default, int) else click.FloatRange
        settings["type"] = in_range(min=item.check.least)  # type: ignore[arg-type]
    if flag.is_repeatable:
        return settings | {"multiple": True}
    if flag.alone is not None:
        return settings | {"is_flag": False, "flag_value": flag.alone}
    if isinstance(item.default, bool) and "/" not in flag.name:
        return settings | {"is_flag": True}
    return settings | {"default": item.default, "show_default": item.default is not None}
