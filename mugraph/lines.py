"""Text of others in a line: names in models and files may hold line feeds, and what tells a terminal to do something."""

from __future__ import annotations

__all__ = ["in_a_line"]


def in_a_line(text: str) -> str:
    """A text with escapes in place of what is no character to see."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
