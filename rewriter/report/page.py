"""The page of a report: sections of text, tables and pictures, and two graphs, in one HTML file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from onnx import GraphProto

from mugraph.lines import in_lines
from rewriter.report.graphs import ChangedRegion, GraphView
from rules_db.late import LateModule

if TYPE_CHECKING:
    import jinja2
    import markupsafe
else:  # few runs write a page
    jinja2, markupsafe = LateModule("jinja2"), LateModule("markupsafe")

__all__ = ["Page", "Section", "VerdictClass", "chart", "fold", "picture", "render", "source", "table", "text", "text_list"]

VerdictClass = Literal["good", "bad", "open"]
"""How a verdict is to be taken."""
Block = dict[str, Any]
"""A part of a section; made by the functions of this module."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with a heading.

    Attributes:
        id: as links name it.
    """

    id: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Page:
    """What a page shows beside the graphs.

    Attributes:
        kind: of report, in words.
        title: the models.
        verdict: in a few words.
        reason: for it, where there is more to say.
        verdict_class: how it is to be taken.
    """

    kind: str
    title: str
    verdict: str
    verdict_class: VerdictClass
    sections: Sequence[Section]
    reason: str = ""

    @property
    def version(self) -> str:
        """Of the package."""
        return version("onnx-superopt")


def text(words: str) -> Block:
    """A paragraph."""
    return {"kind": "text", "text": words}


def text_list(lines: Sequence[str]) -> Block:
    """A list of lines."""
    return {"kind": "list", "lines": list(lines)}


def source(words: str) -> Block:
    """Text that keeps its lines."""
    return {"kind": "pre", "text": words}


def picture(svg: str, label: str) -> Block:
    """An SVG of this package's own making, which holds no text that is not escaped."""
    return {"kind": "svg", "svg": markupsafe.Markup(svg), "label": label}


def chart(svg: str, caption: str) -> Block:
    """A chart of this package's own making."""
    return {"kind": "chart", "svg": markupsafe.Markup(svg), "caption": caption}


def table(head: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> Block:
    """A table whose first column names the rows."""
    return {"kind": "table", "head": list(head), "rows": [[str(cell) for cell in row] for row in rows], "caption": caption}


def fold(
    name: str,
    summary: str,
    blocks: Sequence[Block],
    regions: Sequence[int] = (),
    *,
    is_open: bool = False,
    badge: tuple[str, VerdictClass] | None = None,
    facts: str = "",
    is_term: bool = False,
) -> Block:
    """Blocks that open under a line.

    Args:
        name: as links name it.
        regions: changes that the line leads to.
        badge: a verdict before the line, and how it is to be taken.
        facts: what is to be said beside the line.
        is_term: the line is an equation or a term, of which a closed fold shows two lines.
    """
    return {
        "kind": "fold",
        "id": name,
        "summary": summary,
        "blocks": list(blocks),
        "regions": list(regions),
        "open": is_open,
        "badge": badge,
        "facts": facts,
        "term": is_term,
    }


@cache
def _asset(name: str) -> str:
    return files("rewriter.report").joinpath("page", name).read_text(encoding="utf-8")


def _legible(value: Any) -> Any:
    """A value for the page with escapes in place of what is no character to see; markup is this package's own."""
    if isinstance(value, dict):
        return {key: _legible(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_legible(item) for item in value]
    return in_lines(value) if isinstance(value, str) and not isinstance(value, markupsafe.Markup) else value


def _script_data(value: Any) -> str:
    """JSON that ends no script element."""
    return json.dumps(_legible(value), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def render(page: Page, before: GraphProto, after: GraphProto, regions: Sequence[ChangedRegion]) -> str:
    """The page as HTML.

    Args:
        before, after: main graphs of the two models.
        regions: in which they differ.
    """
    views = {}
    for side, graph in (("before", before), ("after", after)):
        places = {number: place for place, region in enumerate(regions) for number in getattr(region, side)}
        views[side] = GraphView(graph, places).as_json()
    data = {**views, "regions": [asdict(region) for region in regions]}
    environment = jinja2.Environment(
        autoescape=True, finalize=_legible, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_asset("report.html.j2")).render(
        page=page,
        data=markupsafe.Markup(_script_data(data)),
        style=markupsafe.Markup(_asset("report.css")),
        script=markupsafe.Markup(_asset("report.js")),
        dagre=markupsafe.Markup(_asset("dagre.min.js")),
        cytoscape=markupsafe.Markup(_asset("cytoscape.min.js")),
    )
