"""The report of an optimisation: all that its summary tells, and the models before and after it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import onnx
from onnx import GraphProto

from mugraph.lines import counted
from rewriter.reference import Error
from rewriter.report.charts import bars, histogram
from rewriter.report.graphs import ChangedRegion, operator_counts, regions_by_name
from rewriter.report.page import Block, Page, Section, chart, fold, picture, render, source, table, text, text_list
from rewriter.run.outcome import Fired, Outcome
from rewriter.run.timings import Timing
from rules_db.exchange import RuleTextError
from rules_db.library import read_entries
from rules_db.show.picture import svg
from rules_db.show.words import proof_in_words
from rules_db.trust.rule import Rule

__all__ = ["main_graph", "page_seconds", "run_page"]

_BARS = 10
"""Operators and kernels whose times are drawn."""
_PAGE, _NODE = 1.0, 0.5e-3
"""Seconds that a page takes at most, beside other work, and for each node of a model."""
_CHECKED = "checked with the whole model against a float64 reference"
"""The verdict of what a run changed."""


def main_graph(path: Path) -> GraphProto | None:
    """The main graph of a model's file, without the data in other files; ``None`` where it cannot be read."""
    try:
        return onnx.load(str(path), load_external_data=False).graph
    except Exception:  # protobuf's own; the run says what is wrong with the file
        return None


def page_seconds(graph: GraphProto) -> float:
    """Seconds to be left for the report about a model, once that is read."""
    return _PAGE + _NODE * len(graph.node)


def run_page(outcome: Outcome, before: GraphProto, after: GraphProto, rules: str | Sequence[Rule] | None, kernels: Path) -> str:
    """The report as HTML.

    Args:
        before, after: main graphs of the model and of what was written.
        rules: as the options of the run name them.
        kernels: folder with what the run kept of its kernels.
    """
    regions = _with_rules(regions_by_name(before, after, _CHECKED), outcome.fired, before, after)
    sections = [
        Section("latency", "Time", list(_latency(outcome))),
        Section("where", "Where the time goes", list(_times(outcome))),
        Section("operators", "Operators", [table(["operator", "nodes before", "after"], operator_counts(before, after))]),
        Section("rules", "Rules that fired", list(_rules(outcome.fired, _known(rules, outcome.fired), regions))),
        Section("kernels", "Kernels", list(_kernels(kernels))),
        Section("tried", "Candidates that were tried", list(_tried(outcome))),
        Section("errors", "Errors", list(_errors(outcome))),
        Section("assumed", "What was assumed", list(_assumed(outcome))),
        Section("notes", "Notes", list(_notes(outcome))),
    ]
    verdict, how, reason = _verdict(outcome)
    title = f"{outcome.model} -> {outcome.output}"
    shown = [section for section in sections if section.blocks]
    return render(Page("Optimisation of a model", title, verdict, how, shown, reason), before, after, regions)


def _with_rules(
    regions: Iterable[ChangedRegion], fired: Sequence[Fired], before: GraphProto, after: GraphProto
) -> list[ChangedRegion]:
    """Regions with the rules that fired at a value that one of their nodes computes."""
    places: dict[str, list[str]] = {}
    for rule in fired:
        for value in rule.where:
            places.setdefault(value, []).append(rule.rule)
    found = []
    for region in regions:
        nodes = [*(before.node[number] for number in region.before), *(after.node[number] for number in region.after)]
        rules = dict.fromkeys(rule for node in nodes for name in node.output for rule in places.get(name, ()))
        texts = {rule.rule: f"{rule.rule}: {rule.text}" for rule in fired}
        words = tuple(texts[rule] for rule in rules)
        found.append(ChangedRegion(region.before, region.after, region.verdict, words, tuple(rules)))
    return found


def _verdict(outcome: Outcome) -> tuple[str, Literal["good", "bad", "open"], str]:
    """In a few words, how it is to be taken, and why."""
    timing = outcome.on_device or outcome.latency
    if outcome.fault is not None:
        return "an internal error: the original was written", "bad", str(outcome.fault)
    gain = outcome.gain_over_what_came
    whole = None if gain is None else f"{gain:.2f} times as fast as the file that came"
    if not outcome.improved and gain is not None:
        return f"cleaned up: {whole}", "good" if gain > 1 else "open", outcome.message
    if not outcome.improved:
        return "cleaned up, not improved" if outcome.cleaned else "not improved", "open", outcome.message
    if timing is None:
        share = outcome.predicted_after / max(outcome.predicted_before, 1e-9)
        return f"rewritten: {share:.3f} of the time by the cost model", "open", "Numerically checked, not timed end to end."
    where = " on the device" if outcome.on_device is not None else ""
    told: Literal["good", "open"] = "good" if gain is None or gain > 1 else "open"
    return whole or f"{1 / timing.ratio:.2f} times as fast as before{where}", told, ""


def _latency(outcome: Outcome) -> Iterable[Block]:
    rows = []
    timings = [("default settings", outcome.latency), ("inputs and outputs on the device", outcome.on_device)]
    timings = [*(timings if outcome.improved else ()), ("default settings, beside the file that came", outcome.overall)]
    for where, timing in timings:
        if timing is not None:
            times = [
                f"{timing.original:.3f} ({timing.original_spread:.3f})",
                f"{timing.candidate:.3f} ({timing.candidate_spread:.3f})",
            ]
            rows.append(
                [
                    f"{where}, {timing.statistic}",
                    *times,
                    _interval(timing),
                    f"[{timing.control_low:.3f}, {timing.control_high:.3f}]",
                ]
            )
    if rows:
        head = ["milliseconds (between quartiles)", "before", "after", "ratio [95 %]", "the original against itself"]
        yield table(head, rows)
    for where, timing in timings:
        if timing is not None and len(timing.ratios) > 1:
            words = (
                f"After over before in {len(timing.ratios)} pairs of runs, {where}; the band: 95 % interval of {timing.compared}."
            )
            yield chart(histogram(timing.ratios, timing.ratio, timing.low, timing.high), words)


def _interval(timing: Timing) -> str:
    return f"{timing.ratio:.3f} [{timing.low:.3f}, {timing.high:.3f}]"


def _times(outcome: Outcome) -> Iterable[Block]:
    if not outcome.times:
        return
    head = ["operator or kernel", "run before", "run after", "us before", "us after", "least us before", "least us after"]
    rows = [
        [
            row.operator,
            row.nodes_before,
            row.nodes_after,
            f"{row.microseconds_before:,.1f}",
            f"{row.microseconds_after:,.1f}",
            _least(row.roofline_before, row.microseconds_before),
            _least(row.roofline_after, row.microseconds_after),
        ]
        for row in outcome.times
    ]
    sums = [sum(row.microseconds_before for row in outcome.times), sum(row.microseconds_after for row in outcome.times)]
    counts = [sum(row.nodes_before for row in outcome.times), sum(row.nodes_after for row in outcome.times)]
    rows.append(["all", *counts, *(f"{number:,.1f}" for number in sums), "-", "-"])
    largest = sorted(outcome.times, key=lambda row: -max(row.microseconds_before, row.microseconds_after))[:_BARS]
    yield chart(
        bars([(row.operator, row.microseconds_before, row.microseconds_after) for row in largest], "us"),
        "Microseconds before (grey) and after (blue), of what takes most.",
    )
    caption = (
        f"As {outcome.environment} is expected to execute the models, by the cost model: measured, or estimated where that was "
        "not done. Least: by the roofline, bytes over bandwidth or operations over peak; - where kernels are faster than the "
        "peak that is known of the device."
    )
    yield table(head, rows, caption)


def _least(roofline: float, microseconds: float) -> str:
    """The least time that a roofline allows; none where that is more than what was measured."""
    return f"{roofline:,.1f}" if roofline <= microseconds * (1 + 1e-6) else "-"


def _known(rules: str | Sequence[Rule] | None, fired: Sequence[Fired]) -> Mapping[str, Rule]:
    """The rules that fired, as far as they are stored anywhere. No others are read, nor is any checked: the run did that."""
    if not fired:
        return {}
    wanted = {_identity(rule) for rule in fired}
    found = _stored(rules, wanted) if rules is None or isinstance(rules, str) else rules
    return {rule.id: rule for rule in found if rule.id in wanted}


def _stored(url: str | None, identities: Collection[str]) -> Iterator[Rule]:
    """Rules of a file or database, or shipped ones; of two blocks that bear one identity, the one that can be read."""
    for entry in read_entries(url, identities):
        with contextlib.suppress(RuleTextError):
            yield entry.read(is_known=url is None)


def _identity(fired: Fired) -> str:
    return fired.rule.rstrip("<>")


def _rules(fired: Sequence[Fired], known: Mapping[str, Rule], regions: Sequence[ChangedRegion]) -> Iterable[Block]:
    for number, item in enumerate(fired):
        rule = known.get(_identity(item))
        places = counted(item.sites, "place")
        blocks = [text_list([f"at {', '.join(item.where)}"])]
        if rule is not None:
            words = proof_in_words(rule.conditions, rule.certificate, tuple(rule.attrs))
            blocks += [picture(svg(rule), f"Both sides of rule {rule.id}"), source("\n".join(words))]
        else:
            blocks.append(text("A rule that this run made for its kernel; it is in no database."))
        saved = (
            f"saves {item.gain_microseconds:.1f} us by the cost model"
            if item.gain_microseconds >= 0.05
            else "saves nothing by itself"
        )
        changes = [place for place, region in enumerate(regions) if item.rule in region.rules]
        name = f"rule-{item.rule}" if number == _first(fired, item.rule) else f"move-{number}"
        yield fold(name, item.text, blocks, changes, facts=f"{item.evidence}, {places}, {saved}", is_term=True)


def _first(fired: Sequence[Fired], rule: str) -> int:
    return next(number for number, item in enumerate(fired) if item.rule == rule)


def _kernels(folder: Path) -> Iterable[Block]:
    for path in sorted(folder.glob("*.txt")):
        name, blocks = path.stem, list[Block]()
        drawn = path.with_suffix(".svg")
        if drawn.exists():
            blocks.append(picture(drawn.read_text(encoding="utf-8"), f"Block graph of {name}"))
        blocks.append(source(path.read_text(encoding="utf-8")))
        about = path.with_suffix(".json")
        if about.exists():
            blocks += [text("Graph and schedules:"), source(about.read_text(encoding="utf-8"))]
        for code in sorted(folder.glob(f"{name}*.py")):
            blocks += [text(f"Source {code.name}:"), source(code.read_text(encoding="utf-8"))]
        yield fold(f"kernel-{name}", name, blocks)


def _tried(outcome: Outcome) -> Iterable[Block]:
    if outcome.cached_verdict:
        yield text("The verdict of an earlier run on the same graph, rules, options and machine was repeated: none was tried.")
    if not outcome.tried:
        return
    rows = [
        [
            number,
            f"{tried.predicted:,.1f}",
            "-" if tried.timing is None else _interval(tried.timing),
            tried.fate,
            ", ".join(rule[:8] for rule in tried.rules) or "none",
        ]
        for number, tried in enumerate(outcome.tried, 1)
    ]
    head = ["candidate", "us by the cost model", "time over the original's [95 %]", "what came of it", "rules"]
    yield table(
        head,
        rows,
        f"The search met {outcome.generated:,} candidates and expanded {outcome.expanded:,}; these were built and run.",
    )


def _errors(outcome: Outcome) -> Iterable[Block]:
    if outcome.error_before is None:
        return
    rows = [[item.output, _error(item.before), _error(item.after)] for item in outcome.output_errors]
    whole = [
        "the worst of all outputs",
        _error(outcome.error_before),
        _error(outcome.error_after if outcome.improved else outcome.error_before),
    ]
    yield table(
        ["output", "before", "after"],
        [*rows, whole],
        "Relative error against a float64 reference, on the inputs that were timed.",
    )


def _error(error: Error | None) -> str:
    return "-" if error is None else f"{error.relative_l2:.1e} (max/rms {error.max_over_rms:.1e})"


def _assumed(outcome: Outcome) -> Iterable[Block]:
    if outcome.improved:
        yield text_list([str(assumed) for assumed in outcome.assumed]) if outcome.assumed else text("Nothing of the inputs.")


def _notes(outcome: Outcome) -> Iterable[Block]:
    lines = [*(f"dropped: {line}" for line in outcome.dropped), *outcome.notes, *outcome.file_notes]
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in outcome.seconds.items())
    lines.append(f"{counted(outcome.rules, 'rule')}, {counted(outcome.measured_costs, 'cost')} measured; {spent}")
    yield text_list(lines)
