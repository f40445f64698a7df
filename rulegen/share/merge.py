"""Merging: the rules of several files and databases in one, each examined again before it is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rulegen.share.audit import Failure, audit
from rules_db.databases import PATIENCE
from rules_db.entries import Entry, by_size, preferred
from rules_db.exchange import format_rules
from rules_db.files import check_writable, is_text, write_text
from rules_db.library import read_entries
from rules_db.store import RuleStore
from rules_db.trust.certificate import Trust
from rules_db.trust.rule import Rule

__all__ = ["MergeReport", "merge", "move"]


@dataclass(frozen=True)
class MergeReport:
    """The outcome of a merge.

    Attributes:
        new: rules that the outcome did not hold before.
        known: rules that it held, or that stood in several sources.
        rejected: rules that did not stand.
        failures: why.
    """

    new: int
    known: int
    rejected: int
    failures: tuple[Failure, ...]


def merge(
    sources: Sequence[str],
    out: str,
    *,
    jobs: int = 1,
    trust: Trust = Trust.PROVED,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> MergeReport:
    """Unites rules by identity; the outcome depends on neither the order nor the number of times a source is given.

    Args:
        sources: ``.rules`` files, databases and their URLs.
        out: a ``.rules`` file, which is written anew, or a database, which keeps what it holds.
        jobs: processes to work in.
        trust: the evidence that each rule has to bring.
        progress: called with the number of rules examined so far and their total.

    Raises:
        StoreError: a source cannot be read as a whole, or ``out`` cannot be written. Nothing is changed then.
    """
    entries = [entry for source in sources for entry in read_entries(source)]
    if is_text(out):
        check_writable(out)
    else:
        with RuleStore.open(out) as store:
            store.check_writable()
    return _taken(entries, out, jobs, trust, progress)


def move(
    source: str,
    target: str,
    *,
    jobs: int = 1,
    trust: Trust = Trust.PROVED,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> MergeReport:
    """Takes into a database those rules of another that it lacks, or has with another text; no other text is read.

    Args:
        source, target: paths or URLs of databases.
        jobs, trust, progress: as of :func:`merge`.

    Raises:
        StoreError: there is no source, or the target cannot be written. Nothing is changed then.
    """
    with RuleStore.open(source, create=False) as there, RuleStore.open(target) as here:
        here.check_writable()
        has = here.digests()
        lacking = [identity for identity, digest in there.digests().items() if has.get(identity) != digest]
        entries = there.entries(lacking)
    return _taken(entries, target, jobs, trust, progress)


def _taken(entries: Sequence[Entry], out: str, jobs: int, trust: Trust, progress: Callable[[int, int], None]) -> MergeReport:
    """Audits rules and takes those that stand."""
    texts = list({entry.text: entry for entry in reversed(entries)}.values())[::-1]
    report = audit(texts, progress=lambda done: progress(done, len(texts)), jobs=jobs, trust=trust)
    groups: dict[str, list[Rule]] = {}
    for index in report.standing:
        rule = texts[index].read()
        groups.setdefault(rule.id, []).append(rule)
    taken = by_size(map(preferred, groups.values()))
    if is_text(out):
        write_text(out, format_rules(taken))
        new = len(taken)
    else:
        with RuleStore.open(out, patience=PATIENCE) as store:
            new = store.add_all(taken, trust)
    standing = {texts[index].text for index in report.standing}
    accepted = sum(entry.text in standing for entry in entries)
    return MergeReport(new, accepted - new, len(entries) - accepted, report.failures)
