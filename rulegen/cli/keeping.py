"""The commands that keep a database in order: status, remove, prune, verify-log."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection
from itertools import groupby, takewhile

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table

from mugraph.lines import counted
from rulegen.cli.console import jobs_option, name_of, output, trust_option
from rulegen.cli.lending import work_told
from rulegen.journal import generator_digest
from rulegen.share.audit import audit
from rules_db.entries import Usable
from rules_db.files import StoreError
from rules_db.history import Action, broken_link, differences, never_accepted
from rules_db.store import RuleStore
from rules_db.trust.certificate import Trust
from rules_db.units import UnitTable

__all__ = ["prune_command", "remove_command", "status_command", "verify_log_command"]


@click.command("status")
@click.argument("database", metavar="URL")
def status_command(database: str) -> None:
    """Says whose rules serve here, and what work stands.

    Of those that this version cannot use it says why. Other versions may know operators, guards and properties that this one does
    not, and the other way round.
    """
    with RuleStore.open(database, create=False) as store:
        entries, writers = store.entries(), store.writers()
        work = UnitTable.existing(store, generator_digest())
        working = "" if work is None else work_told(work)
    usable, console = Usable.of(entries, Trust.TESTED), output()
    table = Table("written by", "rules", "usable here", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    by = {entry.name: str(writers.get(entry.name, "-")) for entry in entries}
    every, skipped = Counter(by.values()), Counter(by[name] for name in usable.skipped)
    for writer, count in sorted(every.items()):
        table.add_row(writer, str(count), str(count - skipped[writer]))
    console.print(table)
    for name, reason in usable.skipped.items():
        console.print(f"{name}: {reason}", markup=False)
    console.print(
        f"{counted(len(entries), 'rule')} in {name_of(database)}: {len(usable.rules)} usable, {len(usable.skipped)} not",
        markup=False,
    )
    if working:
        console.print(f"work: {working}", markup=False)


@click.command("remove")
@click.argument("database", metavar="URL")
@click.argument("identities", nargs=-1, required=True, metavar="RULE...")
def remove_command(database: str, identities: tuple[str, ...]) -> None:
    """Removes rules from a database, whatever their rows hold.

    RULE is a whole identity. Nothing is removed where one of them is not there.
    """
    name = name_of(database)
    with RuleStore.open(database, create=False) as store:
        texts = store.texts()
        missing = sorted({*identities} - {*texts})
        if missing:
            others = f", nor are {len(missing) - 1} others" if len(missing) > 1 else ""
            raise StoreError(
                f"{name}: rule {missing[0]} is not there{others}; 'rulegen export --rules {name} FILE.rules' writes what is"
            )
        gone = store.remove({one: texts[one] for one in identities})
    output().print(f"{counted(gone, 'rule')} removed from {name}", markup=False)


@click.command("prune")
@click.argument("database", metavar="URL")
@click.option("--newer", is_flag=True, help="Also what a newer version wrote, or another one of the same number.")
def prune_command(database: str, newer: bool) -> None:
    """Removes the rules that this version cannot use.

    What a newer version wrote stays, as that can use it; so does what one of the same number wrote whose trusted code is other.
    """
    with RuleStore.open(database, create=False) as store:
        entries, writers = store.entries(), store.writers()
        skipped, texts = Usable.of(entries, Trust.TESTED).skipped, {entry.identity: entry.text for entry in entries}
        kept = [name for name in skipped if not newer and name in writers and not writers[name].is_older]
        console = output()
        for name in sorted({*skipped} - {*kept}):
            console.print(f"{name}: {skipped[name]}", markup=False)
        gone = store.remove({name: texts[name] for name in {*skipped} - {*kept}})  # unless it was mended meanwhile
    told = f"; {len(kept)} that other versions wrote stay (--newer removes them)" if kept else ""
    console.print(f"{counted(gone, 'rule')} removed from {name_of(database)}{told}", markup=False)


@click.command("verify-log")
@click.argument("database", metavar="URL")
@click.option("--link", metavar="LINK", help="One that was told before, or its beginning: history up to there must be the same.")
@click.option("--copy", metavar="URL", help="Another database, whose log is compared with this one's.")
@click.option("--adopt", is_flag=True, help="Audit rules that were there before the log, and enter in it those that stand.")
@jobs_option
@trust_option
def verify_log_command(database: str, link: str | None, copy: str | None, adopt: bool, jobs: int, trust: Trust) -> None:
    """Checks the log of a database.

    Each entry must follow from those before it, and the rules must be those that it accepted. The last link stands for all
    of it: keep it, and give it to others. Exit code 1 where something differs.
    """
    console, name, wrong = output(), name_of(database), []
    with RuleStore.open(database, create=False) as store:
        entries, texts = store.history(), store.texts()
        if adopt and broken_link(entries) is None:
            wrong += _adopt(store, never_accepted(entries, texts), jobs, trust)
            entries, texts = store.history(), store.texts()
    if (number := broken_link(entries)) is not None:
        wrong.append(f"entry {number} does not follow from those before it: the log was changed")
    differing = differences(entries, texts)
    for what, rules in groupby(sorted(differing, key=lambda rule: (differing[rule], rule)), differing.__getitem__):
        first, *others = rules
        wrong.append(f"rule {first} {what}" + (f"; so are {len(others)} others" if others else ""))
    if link is not None and not any(entry.link.startswith(link) for entry in entries):
        wrong.append(f"no entry has the link {link}: history was rewritten, or this is no copy")
    if copy is not None:
        with RuleStore.open(copy, create=False) as store:
            copied = store.history()
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(entries, copied, strict=False)))
        console.print(
            f"{counted(same, 'entry', 'entries')} in common with {name_of(copy)}, which has {len(copied)}", markup=False
        )
        if same < min(len(entries), len(copied)):
            wrong.append(f"the logs part at entry {same + 1}")
    for line in wrong:
        console.print(line, markup=False)
    last = f", the last with the link {entries[-1].link}" if entries else ""
    console.print(f"{name}: {counted(len(texts), 'rule')}, {counted(len(entries), 'entry', 'entries')}{last}", markup=False)
    if wrong:
        sys.exit(1)


def _adopt(store: RuleStore, rules: Collection[str], jobs: int, trust: Trust) -> list[str]:
    """Enters in the log those rules that an audit passes; says why others fail."""
    entries = store.entries(rules)
    report = audit(entries, jobs=jobs, trust=trust)
    bad = {failure.rule for failure in report.failures}
    adopted = store.note(Action.ADOPTED, {one.identity: one.text for one in entries if one.name not in bad})
    output().print(f"{counted(adopted, 'rule')} adopted", markup=False)
    return [str(failure) for failure in report.failures]
