"""A comparison in words, as JSON and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from modeldiff.compare import ComparedBody, DiffRegion, Equality, ModelComparison
from modeldiff.faults import ModelDifference
from modeldiff.pairing import EqualityClaim
from modeldiff.proofs import Judged
from mugraph.graph import Node
from rewriter.report.graphs import ChangedRegion, operator_counts
from rewriter.report.page import Block, Page, Section, VerdictClass, fold, picture, render, table, text, text_list
from rules_db.show.picture import svg
from rules_db.show.words import proof_in_words
from rules_db.trust.rule import Rule

__all__ = ["as_json", "as_page", "in_brief", "region_lines", "sentence", "tested_on"]

_CLASSES: Mapping[Equality, VerdictClass] = {
    Equality.PROVED: "good",
    Equality.TESTED: "good",
    Equality.UNDECIDED: "open",
    Equality.DIFFERENT: "bad",
}
_NAMED = 4
"""Nodes of a region that a line names."""


def sentence(comparison: ModelComparison) -> str:
    """The verdict and what it rests on."""
    counts = Counter(region.verdict for region in comparison.regions)
    if not comparison.regions and comparison.verdict is Equality.PROVED:
        return "the same: every node of one model is a node of the other"
    listed = ", ".join(f"{counts[verdict]} {verdict}{_how_often(comparison, verdict)}" for verdict in Equality if counts[verdict])
    changes = f"{len(comparison.regions)} change{'s' if len(comparison.regions) > 1 else ''}"
    return f"{comparison.verdict}: {changes}, {listed}" if listed else str(comparison.verdict)


def _how_often(comparison: ModelComparison, verdict: Equality) -> str:
    """On how many inputs what was tested was, at least."""
    if verdict is not Equality.TESTED:
        return ""
    claims = (item for region in comparison.regions if region.verdict is verdict for item in region.claims)
    return f" on {min(len(claim.inputs) for claim, known in claims if not known.is_proved)} inputs"


def tested_on(comparison: ModelComparison) -> str:
    """The inputs on which what is not proved was tested; empty where all is proved."""
    verdicts = [*(region.verdict for region in comparison.regions), *(output.verdict for output in comparison.outputs)]
    words = "; ".join(probe.words for probe in comparison.inputs.probes)
    return f"tested on random inputs {words}" if Equality.TESTED in verdicts else ""


def in_brief(comparison: ModelComparison | ComparedBody, region: DiffRegion) -> str:
    """The nodes of a region: what stands in whose place."""
    before, after = comparison.pairing.before, comparison.pairing.after
    sides = [_listed([side.label(node) for node in nodes]) for side, nodes in ((before, region.before), (after, region.after))]
    return f"{sides[0]} -> {sides[1]}"


def _listed(labels: list[str]) -> str:
    more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
    return f"{', '.join(labels[:_NAMED])}{more}" if labels else "nothing"


def region_lines(
    comparison: ModelComparison | ComparedBody, region: DiffRegion, around: Equality = Equality.DIFFERENT
) -> list[str]:
    """What is known of a region, line by line: what its verdict rests on first.

    Args:
        around: the verdict of the region around it, where it is one of a body.
    """
    lines = [_difference(comparison, difference) for difference in region.differences]
    lines += [f"undecided: {reason}" for reason in region.reasons]
    lines += [line for claim, known in region.claims for line in _claim_lines(comparison, claim, known)]
    lines += [line for body in region.bodies for line in _body_lines(body, _told_within(region.verdict, around))]
    if not lines and not region.after:
        lines.append("computed there twice, or read by no node that is left")
    return lines or ["what it computes has no counterpart that could be told"]


def _told_within(verdict: Equality, around: Equality) -> Equality:
    """The verdict of a body, or of a region there, as it is told: what differs there is undecided where the region around it is,
    since no input shows it."""
    return Equality.UNDECIDED if (verdict, around) == (Equality.DIFFERENT, Equality.UNDECIDED) else verdict


def _body_lines(body: ComparedBody, around: Equality) -> Iterator[str]:
    """What is known of the regions of a body, which is in a region of some verdict."""
    if not body.is_entered and body.regions:
        yield f"{body.name}: no input runs it, so that it is compared on what its node reads"
    for region in body.regions:
        told = _told_within(region.verdict, around)
        hidden = f": it differs{' on what its node reads' * (not body.is_entered)}, which no input shows" * (
            told != region.verdict
        )
        yield f"in {body.name}: {in_brief(body, region)}: {told}{hidden}"
        yield from (f"in {body.name}: {line}" for line in region_lines(body, region, around))


def _difference(comparison: ModelComparison | ComparedBody, difference: ModelDifference) -> str:
    after, before = comparison.pairing.after, comparison.pairing.before
    if difference.after is None or difference.before is None:
        return difference.words
    where = "" if difference.feed is None else f"; on random inputs {comparison.inputs.probes[difference.feed].words}"
    sample = "" if difference.sample is None else f"{',' if where else ';'} {difference.sample}"
    return f"'{after.name(difference.after)}' differs from '{before.name(difference.before)}': {difference.words}{where}{sample}"


def _claim_lines(comparison: ModelComparison | ComparedBody, claim: EqualityClaim, known: Judged) -> list[str]:
    after, before = comparison.pairing.after, comparison.pairing.before
    names = f"'{after.name(claim.after)}' equals '{before.name(claim.before)}'"
    if known.rule is not None and known.is_proved:
        which = "a shipped rule" if known.ships else "a rule proved here"
        steps = ", ".join(dict.fromkeys(instance.axiom for instance in known.rule.certificate.instances))
        by = f"{which}, {known.rule.id}, from the operator properties {steps}" if steps else f"{which}, {known.rule.id}"
        lines = [f"{names}: proved by {by}", known.equation]
        if known.composed:
            lines.append(f"{len(known.composed)} of its tensors are computed of those before: {_apart(max(known.composed))}")
        return lines
    if known.by_bodies:
        return [f"{names}: proved, since its node reads the same and its bodies compute the same"]
    if known.is_proved:
        return [f"{names}: both are constants, which were computed: {_apart(claim.error.relative_l2)}"]
    how = f"tested on {len(claim.inputs)} random inputs, {claim.error.relative_l2:.1e} apart"
    lines = [f"{names}: {how}; no proof: {known.why_not}"]
    return [*lines, known.equation] if known.equation else lines


def _apart(error: float) -> str:
    """How far what is computed of constants is from what is stored."""
    return f"equal within the rounding of their type, {error:.1e} apart" if error else "the same numbers"


def _rules(comparison: ModelComparison) -> dict[str, tuple[Rule, list[int]]]:
    """The rules that prove regions, with the numbers of these."""
    found: dict[str, tuple[Rule, list[int]]] = {}
    for number, region in enumerate(comparison.regions):
        for _, known in _all_claims(region):
            if known.rule is not None and known.is_proved:
                places = found.setdefault(known.rule.id, (known.rule, []))[1]
                if number not in places:
                    places.append(number)
    return found


def _all_claims(region: DiffRegion) -> Iterator[tuple[EqualityClaim, Judged]]:
    """Those of a region and of the bodies within."""
    yield from region.claims
    for body in region.bodies:
        for inner in body.regions:
            yield from _all_claims(inner)


def _rule_ids(region: DiffRegion) -> tuple[str, ...]:
    """The rules that prove what is proved of a region and of the bodies within."""
    return tuple(dict.fromkeys(k.rule.id for _, k in _all_claims(region) if k.rule is not None and k.is_proved))


def as_json(comparison: ModelComparison) -> dict[str, Any]:
    """The whole comparison."""
    before, after = comparison.pairing.before, comparison.pairing.after
    return {
        "before": str(before.model.path),
        "after": str(after.model.path),
        "verdict": str(comparison.verdict),
        "nodes_before": len(before.nodes),
        "nodes_after": len(after.nodes),
        "common": len(comparison.pairing.kept),
        "regions": [_region_json(comparison, region) for region in comparison.regions],
        "outputs": [
            {
                "name": o.name,
                "verdict": str(o.verdict),
                "onnxruntime_relative_error": None if o.run is None else repr(o.run.relative_l2),
            }
            for o in comparison.outputs
        ],
        "inputs": [probe.words for probe in comparison.inputs.probes],
        "notes": list(comparison.notes),
    }


def _region_json(
    comparison: ModelComparison | ComparedBody, region: DiffRegion, around: Equality = Equality.DIFFERENT
) -> dict[str, Any]:
    verdict = _told_within(region.verdict, around)
    before, after = comparison.pairing.before, comparison.pairing.after

    def named(difference: ModelDifference) -> dict[str, Any]:
        sample = difference.sample
        return {
            "before": None if difference.before is None else before.name(difference.before),
            "after": None if difference.after is None else after.name(difference.after),
            "what": difference.words,
            "inputs": None if difference.feed is None else comparison.inputs.probes[difference.feed].words,
            "entry": None if sample is None else list(sample.index),
            "value_before": None if sample is None else repr(sample.before),
            "value_after": None if sample is None else repr(sample.after),
        }

    return {
        "verdict": str(verdict),
        "before": [before.label(node) for node in region.before],
        "after": [after.label(node) for node in region.after],
        "rules": list(_rule_ids(region)),
        "differences": [named(difference) for difference in region.differences],
        "lines": region_lines(comparison, region, around),
        "bodies": [
            {
                "name": body.name,
                "verdict": str(_told_within(body.verdict, verdict)),
                "is_entered": body.is_entered,
                "regions": [_region_json(body, inner, verdict) for inner in body.regions],
            }
            for body in region.bodies
        ],
    }


def as_page(comparison: ModelComparison) -> str:
    """The comparison as one HTML file."""
    before, after = comparison.pairing.before.model, comparison.pairing.after.model
    graphs = before.proto.graph, after.proto.graph
    regions = [
        ChangedRegion(
            _numbers(region.before, len(graphs[0].node)),
            _numbers(region.after, len(graphs[1].node)),
            str(region.verdict),
            tuple(region_lines(comparison, region)),
            _rule_ids(region),
        )
        for region in comparison.regions
    ]
    sections = [Section("changes", "Changes", _changes(comparison))]
    if rules := _rules(comparison):
        sections.append(Section("rules", "Rules", [_rule(rule, places) for rule, places in rules.values()]))
    rows = [(o.name, o.verdict, "-" if o.run is None else f"{o.run.relative_l2:.1e}") for o in comparison.outputs]
    heads = ["output", "verdict", "relative error between the two in onnxruntime"]
    sections.append(Section("outputs", "Outputs", [table(heads, rows)]))
    counts = operator_counts(*graphs)
    sections.append(Section("operators", "Operators", [table(["operator", "nodes before", "after"], counts)]))
    if notes := [*filter(None, (tested_on(comparison),)), *comparison.notes]:
        sections.append(Section("notes", "Notes", [text_list(notes)]))
    page = Page(
        "Comparison of two models",
        f"{before.path} and {after.path}",
        sentence(comparison),
        _CLASSES[comparison.verdict],
        sections,
    )
    return render(page, *graphs, regions)


def _numbers(nodes: tuple[Node, ...], count: int) -> tuple[int, ...]:
    """The numbers of nodes in the main graph of their file."""
    return tuple(sorted({node.origin for node in nodes if node.origin is not None and node.origin < count}))


def _changes(comparison: ModelComparison) -> list[Block]:
    if not comparison.regions:
        return [text("There are none.")]
    weight = list(Equality)
    order = sorted(enumerate(comparison.regions), key=lambda item: -weight.index(item[1].verdict))
    return [
        fold(
            f"change-{number + 1}",
            in_brief(comparison, region),
            [text_list(region_lines(comparison, region))],
            [number],
            is_open=region.verdict is Equality.DIFFERENT,
            badge=(str(region.verdict), _CLASSES[region.verdict]),
        )
        for number, region in order
    ]


def _rule(rule: Rule, places: list[int]) -> Block:
    words = "\n".join(proof_in_words(rule.conditions, rule.certificate, tuple(rule.attrs)))
    blocks = [picture(svg(rule), f"Both sides of rule {rule.id}"), {"kind": "pre", "text": words}]
    return fold(f"rule-{rule.id}", str(rule), blocks, places, facts=f"rule {rule.id}", is_term=True)
