"""Pictures of rules: well-formed, complete, without crossing boxes, equal bytes for equal rules."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from rulegen.cli.main import cli
from rules_db.library import shipped_rules
from rules_db.show.picture import svg
from rules_db.trust.rule import Rule

NAMESPACE = "{http://www.w3.org/2000/svg}"
RULES = shipped_rules()
SPLIT = next(rule for rule in RULES if len(rule.source) == 2 and "Concat" in str(rule) and "MatMul" in str(rule))


def texts(group: ET.Element) -> list[str]:
    return [element.text or "" for element in group.iter(f"{NAMESPACE}text")]


def test_both_sides_with_labels_and_shared_colours() -> None:
    root = ET.fromstring(svg(SPLIT))
    source, target = root.findall(f"{NAMESPACE}g")
    assert {"source", "MatMul", "output 0", "output 1"} <= set(texts(source))
    assert {"target", "MatMul", "Concat", "Split", "part 0", "part 1"} <= set(texts(target))
    assert texts(target).count("Split") == 1  # both outputs of one operator
    for name, type_ in SPLIT.types.items():
        assert name in texts(source) and str(type_) in texts(source)
    colours = [{box.get("fill") for box in side.iter(f"{NAMESPACE}rect")} - {"#ffffff"} for side in (source, target)]
    assert colours[0] == colours[1] and len(colours[0]) == len(SPLIT.types)


@pytest.mark.parametrize("rule", RULES[::10], ids=lambda rule: rule.id)
def test_boxes_do_not_overlap_and_lie_inside(rule: Rule) -> None:
    root = ET.fromstring(svg(rule))
    width, height = (float(root.get(name, "0")) for name in ("width", "height"))
    right = 0.0
    for side in root.findall(f"{NAMESPACE}g"):
        shift_x, shift_y = map(float, side.get("transform", "")[len("translate(") : -1].split(","))
        boxes = [[float(box.get(name, "0")) for name in ("x", "y", "width", "height")] for box in side.iter(f"{NAMESPACE}rect")]
        for number, (x, y, w, h) in enumerate(boxes):
            assert right <= x + shift_x and x + shift_x + w <= width and y + shift_y >= 0 and y + shift_y + h <= height
            for u, v, p, q in boxes[:number]:
                assert x + w <= u or u + p <= x or y + h <= v or v + q <= y
        right = max(x + w for x, _, w, _ in boxes) + shift_x


def test_equal_bytes_and_no_assets() -> None:
    assert svg(SPLIT) == svg(SPLIT)
    text = svg(SPLIT).replace("http://www.w3.org/2000/svg", "")
    assert "http" not in text and "href" not in text and "url(#tip)" in text


def test_show_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "rule.svg"
    result = CliRunner().invoke(cli, ["show", SPLIT.id, "--svg", str(file)])
    assert result.exit_code == 0 and "because" in result.output
    assert file.read_text() == svg(SPLIT)
