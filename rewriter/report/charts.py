"""Small charts as SVG, in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from mugraph.lines import in_a_line

__all__ = ["bars", "histogram"]

_WIDTH, _HEIGHT, _PAD = 640, 130, 26
_BINS = 40
_LABEL, _BAR, _NUMBER = 240, 9, 90
"""Of a bar chart: width of the labels, height of a bar, width of the numbers."""
_LETTERS = 34
"""Of a label."""


def histogram(ratios: Sequence[float], ratio: float, low: float, high: float) -> str:
    """The distribution of paired ratios: bars, the median's interval as a band, the median and 1 as lines."""
    ordered = sorted(ratios)
    cut = max(len(ordered) // 100, 0)
    inner = ordered[cut : len(ordered) - cut] or ordered
    left, right = min(inner[0], low, 1.0), max(inner[-1], high, 1.0)
    margin = 0.02 * (right - left) or 0.01
    left, right = left - margin, right + margin
    counts = [0] * _BINS
    for value in ordered:
        counts[min(max(math.floor((value - left) / (right - left) * _BINS), 0), _BINS - 1)] += 1
    most = max(counts)

    def x(value: float) -> float:
        return _PAD + (value - left) / (right - left) * (_WIDTH - 2 * _PAD)

    bars = [
        f'<rect x="{x(left) + i * (_WIDTH - 2 * _PAD) / _BINS:.1f}" y="{_HEIGHT - _PAD - 80 * n / most:.1f}" '
        f'width="{(_WIDTH - 2 * _PAD) / _BINS - 1:.1f}" height="{80 * n / most:.1f}" fill="var(--edge)"/>'
        for i, n in enumerate(counts)
        if n
    ]
    marks = "".join(
        f'<line x1="{x(v):.1f}" x2="{x(v):.1f}" y1="14" y2="{_HEIGHT - _PAD}" stroke="var({colour})" stroke-width="2"/>'
        f'<text x="{x(v):.1f}" y="{y}" text-anchor="middle" font-size="11" fill="var({colour})">{v:.3f}</text>'
        for v, colour, y in ((ratio, "--good" if ratio < 1 else "--bad", 11), (1.0, "--soft", _HEIGHT - 10))
    )
    width, height = max(x(high) - x(low), 1), _HEIGHT - _PAD - 14
    band = f'<rect x="{x(low):.1f}" y="14" width="{width:.1f}" height="{height}" fill="var(--band)"/>'
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img">{"".join(bars)}{band}{marks}</svg>'
    )


def bars(rows: Sequence[tuple[str, float, float]], unit: str) -> str:
    """Two bars a row, before and after, with their numbers.

    Args:
        rows: labels and numbers, none negative.
    """
    most = max((number for _, *pair in rows for number in pair), default=0.0) or 1.0
    step, scale = 2 * _BAR + 10, (_WIDTH - _LABEL - _NUMBER) / most
    parts = []
    for place, (label, *pair) in enumerate(rows):
        y = place * step
        short = label if len(label) <= _LETTERS else f"{label[: _LETTERS - 1]}…"
        parts.append(f'<text x="0" y="{y + _BAR + 4}" font-size="12" fill="var(--text)">{escape(in_a_line(short))}</text>')
        for line, (number, colour) in enumerate(zip(pair, ("--edge", "--link"), strict=True)):
            top, width = y + line * (_BAR + 1), number * scale
            parts.append(f'<rect x="{_LABEL}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="var({colour})"/>')
            if number:
                words = f"{number:,.1f} {unit}"
                parts.append(
                    f'<text x="{_LABEL + width + 6:.1f}" y="{top + _BAR - 1}" font-size="10" fill="var(--soft)">{words}</text>'
                )
    height = len(rows) * step
    return f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">{"".join(parts)}</svg>'
