"""Pages: complete, self-contained, safe from what models are called, and usable by mouse and keyboard, by day and by night."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import GraphProto, TensorProto, helper

from rewriter.report.charts import bars
from rewriter.report.graphs import ChangedRegion, GraphView, operator_counts, regions_by_name
from rewriter.report.page import Page, Section, chart, fold, render, source, table, text, text_list
from tests.support.chromium import Browser, browser
from tests.support.runs import block

EVIL = "</script><img src=x onerror=alert(1)>"


def chain(count: int, op: str = "Relu", scope: str = "", name: str = "g") -> GraphProto:
    """Nodes in a row."""
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], f"{scope.format(i // 30)}n{i}") for i in range(count)]
    ends = [helper.make_tensor_value_info(value, TensorProto.FLOAT, [2]) for value in ("v0", f"v{count}")]
    return helper.make_graph(nodes, name, ends[:1], ends[1:])


def page_of(before: GraphProto, after: GraphProto, regions: list[ChangedRegion], title: str = "a and b") -> str:
    blocks = [text(title), table(["name", "n"], [[title, 1]]), fold("f", title, [text(title)], [0] if regions else [])]
    return render(Page("Test", title, "fine", "good", [Section("one", "One", blocks)]), before, after, regions)


def test_names_tell_a_reader_nothing() -> None:
    """Neither where they are written nor where the script takes them from; lines of a source stay lines."""
    odd = "a\x1b[2J\x00\u202eb"
    graph = chain(3, name=odd, scope=odd)
    for node in graph.node:
        node.input[:], node.output[:] = [odd + name for name in node.input], [odd + name for name in node.output]
    blocks = [text(odd), text_list([odd]), table([odd], [[odd]], odd), fold("f", odd, [source(f"{odd}\n\tx")], facts=odd)]
    blocks.append(chart(bars([(odd, 1.0, 2.0)], "us"), odd))
    html = render(Page(odd, odd, odd, "good", [Section("one", odd, blocks)], odd), graph, graph, [])
    assert "\x1b" not in html and "\x00" not in html and "\u202e" not in html
    legible = r"a\x1b[2J\x00\u202eb"
    assert f"{legible}\n\tx</pre>" in html and legible in data_of(html)["before"]["nodes"][0]["reads"][0]
    assert all(word.isprintable() for node in data_of(html)["before"]["nodes"] for word in (node["name"], *node["makes"]))


def data_of(html: str) -> dict:  # type: ignore[type-arg]
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert found is not None
    return json.loads(found.group(1))  # type: ignore[no-any-return]


def two_graphs() -> tuple[GraphProto, GraphProto, list[ChangedRegion]]:
    """Relu, Neg, Neg, Relu before; Relu, Relu after: one region of two nodes and, of the last, one of the same name."""
    ends = [helper.make_tensor_value_info(value, TensorProto.FLOAT, [2]) for value in ("x", "y")]
    make = helper.make_node
    before = [
        make("Relu", ["x"], ["a"], "first"),
        make("Neg", ["a"], ["b"]),
        make("Neg", ["b"], ["c"]),
        make("Tanh", ["c"], ["y"]),
    ]
    after = [make("Relu", ["x"], ["a"], "renamed"), make("Tanh", ["a"], ["y"])]
    graphs = [helper.make_graph(nodes, "g", ends[:1], ends[1:]) for nodes in (before, after)]
    return graphs[0], graphs[1], regions_by_name(*graphs, "checked")


def test_a_fold_says_how_its_verdict_is_to_be_taken() -> None:
    before, after, regions = two_graphs()
    blocks = [
        fold("a", EVIL, [text("inside")], [0], badge=("different", "bad")),
        fold("b", "Add(x, y) = Add(y, x)", [text("inside")], [0], facts="proved, 2 places", is_term=True),
    ]
    html = render(Page("Test", "t", "fine", "good", [Section("one", "One", blocks)]), before, after, regions)
    first, second = re.findall(r"<summary>(.*?)</summary>", html, re.S)
    assert '<span class="badge bad">different</span>' in first and EVIL not in first and 'class="shows"' in first
    assert '<span class="what term">Add(x, y) = Add(y, x)</span>' in second and '<span class="facts">proved, 2 places' in second
    assert all('data-region="0">show change 1' in summary for summary in (first, second)) and "badge" not in second


def test_regions_are_what_names_do_not_share() -> None:
    before, after, regions = two_graphs()
    assert regions == [ChangedRegion((1, 2, 3), (1,), "checked")]
    assert regions_by_name(before, before, "checked") == []
    assert operator_counts(before, after) == [("Neg", 2, 0), ("Relu", 1, 1), ("Tanh", 1, 1)]
    assert [node["region"] for node in GraphView(before, {1: 0, 2: 0}).as_json()["nodes"]] == [-1, 0, 0, -1]


@pytest.mark.parametrize("count, scope", [(10, ""), (500, ""), (10_000, ""), (10_000, "layer.{}/")])
def test_no_group_shows_more_than_fits(count: int, scope: str) -> None:
    view = GraphView(chain(count, scope=scope), {}).as_json()
    children = [0] * len(view["groups"])
    for node in view["nodes"]:
        children[node["group"]] += 1
    for number, group in enumerate(view["groups"][1:], 1):
        assert 0 <= group["parent"] < number
        children[group["parent"]] += 1
    assert max(children) <= 48 and min(children) >= 1 and len(view["nodes"]) == count
    if scope:
        assert any(group["name"] == "layer.3" for group in view["groups"])


def test_a_page_is_alone_and_safe() -> None:
    graph = chain(3, name=EVIL)
    graph.node[1].name = EVIL
    html = page_of(graph, graph, [ChangedRegion((1,), (1,), EVIL, (EVIL,))], EVIL)
    assert "<img src=x" not in html and html.count("<script") == 4
    assert data_of(html)["before"]["nodes"][1]["name"] == EVIL and data_of(html)["regions"][0]["verdict"] == EVIL
    assert "default-src 'none'" in html and not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", html)


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path / "profile") as opened:
        yield opened


def opened(window: Browser, folder: Path, before: GraphProto, after: GraphProto, regions: list[ChangedRegion]) -> None:
    path = folder / "page.html"
    path.write_text(page_of(before, after, regions), encoding="utf-8")
    window.open(path)


def test_a_page_shows_changes_in_pairs(window: Browser, tmp_path: Path) -> None:
    opened(window, tmp_path, *two_graphs())
    assert window.run("return report.panes.map(p => p.cy.nodes().length)") == [4, 2]
    window.run("document.getElementById('next').click()")
    assert window.run("return report.panes.map(p => p.cy.nodes('.paired').length)") == [3, 1]
    assert "change 1 of 1: checked" in window.run("return document.getElementById('details').innerText")
    window.run(
        "const p = report.panes[1]; p.cy.getElementById('n1').emit('tap')"
    )  # the new node leads to those in whose place it is
    details = window.run("return document.getElementById('details').innerText")
    assert "after: Tanh" in details and "Neg" in details
    assert window.problems() == []


def test_all_is_reached_by_keyboard(window: Browser, tmp_path: Path) -> None:
    graph = chain(100, scope="layer.{}/")
    opened(window, tmp_path, graph, graph, [ChangedRegion((70,), (70,), "checked")])
    down, up, enter = "\ue015", "\ue013", "\ue007"
    closed = window.run("return report.panes[0].cy.nodes().length")
    window.press("#before", down)
    assert window.run("return report.panes[0].selected") == "g1"
    window.press("#before", enter)
    assert window.run("return report.panes[0].cy.nodes().length") == closed + 30
    window.press("#before", "c")
    assert window.run("return report.panes[0].cy.nodes().length") == closed
    window.press("#before", down, down, up)
    assert window.run("return report.panes[0].selected") == "g2"
    window.press("#before", "n")
    assert window.run("return document.querySelectorAll('#details h3')[0].innerText") == "change 1 of 1: checked"
    window.press("#search", "n42", enter)
    assert "Relu layer.1/n42" in window.run("return document.getElementById('details').innerText")
    assert window.problems() == []


def test_the_page_follows_the_dark(window: Browser, tmp_path: Path) -> None:
    opened(window, tmp_path, *two_graphs())
    of_node = "report.panes[0].cy.getElementById('n0').style('background-color')"
    shades = f"return [getComputedStyle(document.body).backgroundColor, {of_node}]"
    assert window.run(shades) == ["rgb(255, 255, 255)", "rgb(255,255,255)"]
    day_picture = window.picture()
    window.dark()
    assert window.becomes(shades, ["rgb(13, 17, 23)", "rgb(33,40,48)"])
    assert window.picture() != day_picture and window.problems() == []


def test_the_demo_opens_and_nothing_is_told_on_the_console(window: Browser, tmp_path: Path) -> None:
    graph = onnx.load(block(tmp_path / "block.onnx")).graph
    opened(window, tmp_path, graph, graph, [])
    assert window.run("return report.panes[0].nodes.length") == len(graph.node) and window.problems() == []
    assert window.run("return document.getElementById('which').innerText") == "no changes"
