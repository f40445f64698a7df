"""Text of others to be read: names in models and files may hold line feeds, and what tells a terminal to do something."""

from __future__ import annotations

import logging

__all__ = ["LineFormatter", "counted", "in_a_line", "in_lines"]


def in_a_line(text: str) -> str:
    """A text with escapes in place of what is no character to see."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def in_lines(text: str) -> str:
    """The same of a text of several lines, which stay lines; tabs stay, too."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(in_a_line, line.split("\t"))) for line in text.split("\n"))


def counted(number: int, noun: str, nouns: str = "") -> str:
    """A number of things in words: 1 rule, 1,619 rules.

    Args:
        nouns: of any other number; by default the noun with an s.
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


class LineFormatter(logging.Formatter):
    """Formats the message of a record in a line; a traceback below it keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return in_a_line(super().formatMessage(record))
