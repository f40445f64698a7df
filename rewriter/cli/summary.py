"""The closing table of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from mugraph.console import FOLDED, UNBOUNDED, shown
from mugraph.lines import counted
from rewriter.reference import Error
from rewriter.run.footprint import ModelFootprint
from rewriter.run.outcome import Fired, Outcome
from rewriter.run.timings import Timing
from rewriter.search.misses import NearMiss

__all__ = ["print_explanations", "print_summary"]

_SCREEN = 20
"""Explanations that are printed."""
_RULE = 8
"""Characters of a rule's id that tell it from others."""
_WIDE = 120
"""Columns of a screen on which substitutions are printed, too."""
_LEAST = 0.05
"""Microseconds below which a saving is printed as none."""
_LONG = 2000
"""Characters of a line from its beginning that are printed: names in a file may be as long as the file."""


def _said(line: str) -> str:
    """A line with what a model's author wrote in it, as a console takes it; ``--json`` has all of it."""
    return shown(line if len(line) <= _LONG else f"{line[:_LONG]}... ({len(line):,} characters)")


def _error(error: Error | None) -> str:
    return "-" if error is None else f"{error.relative_l2:.1e} (max/rms {error.max_over_rms:.1e})"


def _add_timing(table: Table, where: str, timing: Timing) -> None:
    table.add_row(
        f"latency{where}, {timing.statistic} (spread)",
        f"{timing.original:.3f} ms ({timing.original_spread:.3f})",
        f"{timing.candidate:.3f} ms ({timing.candidate_spread:.3f})",
    )
    table.add_row(f"latency ratio{where} [95 %]", *_ratios(timing))


def _ratios(timing: Timing) -> tuple[str, str]:
    """What came beside itself, and what was made of it beside that."""
    itself = f"[{timing.control_low:.3f}, {timing.control_high:.3f}]"
    return itself, f"{timing.ratio:.3f} [{timing.low:.3f}, {timing.high:.3f}]"


def _microseconds(gain: float) -> str:
    """A saving; one that rounds to nothing has no sign."""
    return f"{gain if abs(gain) >= _LEAST else 0.0:.1f} us"


def _load(taken: ModelFootprint) -> str | None:
    return None if taken.load is None else f"{taken.load:.1f} ms"


def _size(taken: ModelFootprint) -> str:
    return f"{taken.size / 1e6:,.2f} MB"


def _peak(taken: ModelFootprint) -> str | None:
    return None if taken.peak is None else f"{taken.peak / 1e6:,.1f} MB"


def print_summary(outcome: Outcome, console: Console) -> None:
    """Latency, nodes and error before and after, the rules that fired, and what the user should know."""
    console.print(f"[italic]{_said(f'{outcome.model} -> {outcome.output}')}[/]", soft_wrap=True)
    console.print(_measures(outcome))
    if outcome.fired:
        console.print(_fired_rules(outcome))
    for line in (*_remarks(outcome), *_effort(outcome), *_verdict(outcome)):
        console.print(line)


def _measures(outcome: Outcome) -> Table:
    """What was measured of the model before and after."""
    table = Table()
    for heading in ("", "before", "after"):
        table.add_column(heading, justify="left" if not heading else "right")
    if outcome.improved:
        for where, told in (("", outcome.latency), (" on the device", outcome.on_device)):
            if told is not None:
                _add_timing(table, where, told)
    if outcome.overall is not None:
        table.add_row("latency ratio to the file that came [95 %]", *_ratios(outcome.overall))
    table.add_row("nodes", str(outcome.nodes_before), str(outcome.nodes_after))
    for name, value in (("load time", _load), ("file size", _size), ("peak memory to load and run", _peak)):
        cells = [None if taken is None else value(taken) for taken in (outcome.before, outcome.after)]
        if any(cells):
            table.add_row(name, *(cell or "-" for cell in cells))
    if outcome.error_before is not None:
        after = outcome.error_after if outcome.improved else outcome.error_before
        table.add_row("relative error vs float64", _error(outcome.error_before), _error(after))
    return table


def _fired_rules(outcome: Outcome) -> Table:
    """What fired, moves of one substitution together, what saves most first; that last, since no screen may be wide enough."""
    table = Table(title="rules that fired", title_justify="left")
    for heading in ("rule", "evidence"):
        table.add_column(heading)
    for heading in ("sites", "saves by cost model"):
        table.add_column(heading, justify="right")
    table.add_column("substitution", overflow="fold", max_width=FOLDED)
    moves: dict[tuple[str, str, str], list[Fired]] = {}
    for fired in outcome.fired:
        moves.setdefault((fired.rule, fired.evidence, fired.text), []).append(fired)
    gains = {key: sum(fired.gain_microseconds for fired in same) for key, same in moves.items()}
    for key in sorted(moves, key=lambda key: -gains[key]):
        rule, evidence, text = key
        table.add_row(rule, evidence, str(sum(fired.sites for fired in moves[key])), _microseconds(gains[key]), _said(text))
    return table


def _remarks(outcome: Outcome) -> Iterator[str]:
    """How to run the result, what was dropped, what is assumed, and all notes."""
    if outcome.kernels:
        yield (
            f"{counted(outcome.kernels, 'custom kernel')}: sessions run them after [bold]rewriter.runtime.register(options)[/], "
            "their plain ONNX bodies without it"
        )
    yield f"[dim]operators: {_said(_where_it_runs(outcome))}[/]"
    for line in outcome.dropped:
        yield f"[yellow]dropped[/] {_said(line)}"
    for told in (*outcome.assumed, *outcome.notes, *outcome.file_notes):
        yield f"[dim]note: {_said(str(told))}[/]"


def _effort(outcome: Outcome) -> Iterator[str]:
    """What was searched and measured, and how long it took."""
    if outcome.estimated_costs:
        calibrated = (
            f", {outcome.calibrated_costs} of them calibrated by others of their kind" if outcome.calibrated_costs else ""
        )
        estimated = counted(outcome.estimated_costs, "operator cost")
        yield f"[dim]note: {estimated} estimated by a roofline, not measured{calibrated}[/]"
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in outcome.seconds.items())
    cached = "; verdict of an earlier run on the same graph, rules and machine" if outcome.cached_verdict else ""
    rules, candidates = counted(outcome.rules, "rule"), counted(outcome.generated, "candidate")
    counts = f"{rules}, {candidates}, {counted(outcome.measured_costs, 'cost')} measured"
    yield f"[dim]{counts}; {spent}{cached}[/]"


def _verdict(outcome: Outcome) -> Iterator[str]:
    if not outcome.improved:
        yield f"[bold]not improved[/]: {_said(outcome.message)}"
        if outcome.cleaned:
            same = "what was written is the original with less in it; outputs were the same bit for bit where both were run"
            yield f"[green]cleaned up[/]: {_over_what_came(outcome)}{same}"
    elif outcome.latency is None:
        share = outcome.predicted_after / max(outcome.predicted_before, 1e-9)
        yield (
            f"[green]rewritten[/]: {share:.3f} of the original's time by the cost model for {_said(outcome.environment)}; "
            "numerically checked, not timed end to end"
        )
    else:
        yield f"[green]improved[/]: {_times_as_fast(outcome, outcome.latency)}"


def _over_what_came(outcome: Outcome) -> str:
    """The beginning of a line, where cleaning up has a part in the gain."""
    gain = outcome.gain_over_what_came
    return "" if gain is None else f"{gain:.2f} times as fast as the file that came; "


def _times_as_fast(outcome: Outcome, latency: Timing) -> str:
    """The gain in words: on the device first, where it is known, since default settings may wait for the processor."""
    usual, on_device = f"{1 / latency.ratio:.2f} times", outcome.on_device
    if on_device is None:
        whole = _over_what_came(outcome)
        return f"{whole}{usual} as fast as cleaned up alone" if whole else f"{usual} as fast as before"
    return f"{1 / on_device.ratio:.2f} times as fast as before on the device, {usual} under default settings"


def _where_it_runs(outcome: Outcome) -> str:
    """The operator sets that the written model needs, and what runs them."""
    if not outcome.domains:
        return "ai.onnx alone: any runtime of the model's opset runs it"
    sets = " and ".join(("ai.onnx", *outcome.domains))
    if outcome.domains == ("com.microsoft",):
        return f"{sets}: onnxruntime runs it; --standard-ops keeps to what the model came with"
    return f"{sets}: runtimes that have these operator sets run it"


def print_explanations(explanations: Sequence[NearMiss], console: Console) -> None:
    """Why rules did not fire: what would have saved most, grouped by reason, on one screen.

    Rules that miss at one place for one cause are one line.
    """
    causes: dict[tuple[str, str], list[NearMiss]] = {}
    for line in explanations:
        causes.setdefault((line.where, line.outcome), []).append(line)
    misses = [lines for lines in causes.values() if lines[0].at_stake > 0]
    chosen = (misses or list(causes.values()))[:_SCREEN]
    for reason in dict.fromkeys(lines[0].reason for lines in chosen):
        table = Table(
            box=None, title=f"why (not): {reason}", title_justify="left", expand=console.width < UNBOUNDED, padding=(0, 2, 0, 0)
        )
        table.add_column("saves at most" if misses else "", justify="right", no_wrap=True)
        table.add_column("rule", width=_RULE + 5, no_wrap=True)
        columns = {"substitution": 3, "at": 2, "because": 5} if console.width >= _WIDE else {"at": 1, "because": 4}
        for heading, share in columns.items():
            if console.width < UNBOUNDED:
                table.add_column(heading, no_wrap=True, overflow="ellipsis", ratio=share)
            else:
                table.add_column(heading, overflow="fold", max_width=FOLDED)
        for first, *others in (lines for lines in chosen if lines[0].reason == reason):
            stake = f"{first.at_stake:.1f} us" if first.at_stake else ""
            rule = f"{first.rule[:_RULE]} +{len(others)}" if others else first.rule[:_RULE]
            words = {"substitution": first.text, "at": first.where, "because": first.outcome}
            table.add_row(stake, rule, *(_said(words[heading]) for heading in columns))
        console.print(table)
    if len(causes) > len(chosen):
        console.print(f"[dim]{len(causes) - len(chosen)} more outcomes, and all in full length, are in the file of --json[/]")
