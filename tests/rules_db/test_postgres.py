"""A database of rules on a PostgreSQL server: writers that meet, a server that restarts, passwords."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rulegen.cli.main import cli
from rules_db import databases
from rules_db.databases import without_password
from rules_db.exchange import format_rule, format_rules
from rules_db.files import StoreError
from rules_db.history import broken_link, differences
from rules_db.library import open_rules
from rules_db.store import RuleStore
from tests.support.postgres import SECRET, PostgresServer
from tests.support.rules import landmarks

RULES = landmarks()

_numbers = itertools.count()


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """An empty database."""
    return postgres.new_database(f"rules{next(_numbers)}")


def kept(url: str) -> list[str]:
    return sorted(map(format_rule, open_rules(url)))


EVERY = sorted(map(format_rule, RULES))


def test_a_server_keeps_rules(url: str) -> None:
    with RuleStore.open(url) as store:
        assert store.add_all(RULES) == len(RULES)
        assert store.add_all(RULES[::-1]) == 0
    assert kept(url) == EVERY
    with RuleStore.open(url, create=False) as store:
        assert {*store.writers()} == {rule.id for rule in RULES}
        texts = store.texts()
        assert store.remove({RULES[0].id: texts[RULES[0].id], RULES[1].id: "another"}) == 1
        assert len(store) == len(RULES) - 1


WRITER = """
import sys
from rules_db.exchange import read_rules
from rules_db.store import RuleStore

url, text, turn = sys.argv[1:]
rules = read_rules(text)
print(flush=True)  # ready
sys.stdin.readline()
with RuleStore.open(url) as store:
    for round_ in range(6):
        store.add_all(rules[::-1] if turn == "1" else rules)
        mine = store.texts()
        store.remove({identity: mine[identity] for identity in sorted(mine, reverse=turn == "1")[::3]})
    store.add_all(rules)
"""


def started(url: str, text: Path, turn: str) -> subprocess.Popen[str]:
    """A writer that is ready."""
    pipe = subprocess.PIPE
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, url, str(text), turn], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    assert writer.stdout is not None and writer.stdout.readline() == "\n"
    return writer


def ended(writers: list[subprocess.Popen[str]]) -> None:
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        assert writer.communicate(timeout=120)[1] == ""


def test_writers_of_the_same_rules_in_other_orders_do_not_wait_for_each_other(url: str, tmp_path: Path) -> None:
    """Nor do their first uses of an empty database collide."""
    text = tmp_path / "all.rules"
    text.write_text(format_rules(RULES))
    ended([started(url, text, turn) for turn in "01"])
    assert kept(url) == EVERY
    with RuleStore.open(url) as store:
        log = store.history()
        assert broken_link(log) is None and differences(log, store.texts()) == {}


def test_first_uses_of_an_empty_database_do_not_collide(postgres: PostgresServer) -> None:
    for _ in range(4):
        url, failures, gate = postgres.new_database(f"rules{next(_numbers)}"), list[Exception](), threading.Barrier(6)

        def use(url: str = url, failures: list[Exception] = failures, gate: threading.Barrier = gate) -> None:
            gate.wait()
            try:
                RuleStore.open(url).close()
            except Exception as problem:
                failures.append(problem)

        users = [threading.Thread(target=use) for _ in range(6)]
        for user in users:
            user.start()
        for user in users:
            user.join()
        assert failures == []
        assert open_rules(url) == []


def after(seconds: float, action: Callable[[], None]) -> threading.Thread:
    def act() -> None:
        time.sleep(seconds)
        action()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_a_restart_of_the_server_costs_no_addition(postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It loses its power in the middle of a transaction, and comes back while the writer tries again."""
    put, back = RuleStore._put, list[threading.Thread]()

    def falls(*arguments: object) -> None:
        put(*arguments)  # type: ignore[arg-type]
        if not back:
            postgres.stop()
            back.append(after(0.5, postgres.start))

    with RuleStore.open(url) as store:
        monkeypatch.setattr(RuleStore, "_put", falls)
        assert store.add_all(RULES) == len(RULES)
    back[0].join()
    assert kept(url) == EVERY


def test_a_server_that_was_there_is_waited_for(postgres: PostgresServer, url: str) -> None:
    postgres.stop()
    back = after(0.5, postgres.start)
    try:
        with RuleStore.open(url, patience=60.0) as store:
            assert store.add_all(RULES) == len(RULES)
    finally:
        back.join()


def test_a_server_that_does_not_come_back_is_one_line(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rules_db.store.PATIENCE", 0.3)
    with RuleStore.open(url) as store:
        postgres.stop()
        try:
            with pytest.raises(StoreError) as caught:
                store.add_all(RULES)
            started_at = time.monotonic()
            with pytest.raises(StoreError) as refused:
                RuleStore.open(url)
            assert time.monotonic() - started_at < 5  # nobody said that it was ever there
        finally:
            postgres.start()
        for one in (caught, refused):
            assert "\n" not in str(one.value) and SECRET not in str(one.value) and "database server answers" in str(one.value)
        assert store.add_all(RULES) == len(RULES)


def test_another_error_is_not_tried_again(postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases.time, "sleep", lambda seconds: pytest.fail("waits"))
    with pytest.raises(StoreError, match="does not exist"):
        RuleStore.open(postgres.url("nowhere"))
    with pytest.raises(StoreError, match="authentication failed"):
        RuleStore.open(url.replace(SECRET, "wrong"))


def test_no_command_prints_a_password(postgres: PostgresServer, url: str, tmp_path: Path) -> None:
    text = tmp_path / "some.rules"
    text.write_text(format_rules(RULES))
    some = RULES[0].id
    commands = (
        ("merge", str(text), "--out", url),
        ("stats", url),
        ("status", url),
        ("show", some, "--rules", url),
        ("show", "zz", "--rules", url),
        ("audit", url),
        ("export", str(tmp_path / "out.rules"), "--rules", url),
        ("import", str(text), "--rules", url),
        ("grow", "--group", "guard", "--max-ops", "1", "--rules", url),
        ("grow", "--group", "guard", "--out", url),
        ("remove", url, "nothing"),
        ("remove", url, some),
        ("prune", url),
    )

    def told(arguments: tuple[str, ...]) -> str:
        ended = CliRunner().invoke(cli, arguments)
        assert ended.exception is None or isinstance(ended.exception, (StoreError, SystemExit))
        return f"{ended.output}{ended.exception}"

    for arguments in commands:
        printed = told(arguments)
        assert printed and SECRET not in printed, arguments
    for broken in (url.replace(f":{postgres.port}", ":1"), url.replace(f":{postgres.port}", ":port")):
        for arguments in (
            ("stats", broken),
            ("merge", str(text), "--out", broken),
            ("grow", "--group", "guard", "--rules", broken),
        ):
            printed = told(arguments)
            assert "postgresql" in printed and "***" in printed and SECRET not in printed


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rules.db", "rules.db"),
        ("postgresql://host/name", "postgresql://host/name"),
        ("postgresql://me@host/name", "postgresql://me@host/name"),
        ("postgresql://me:se@c:r/et@host:54/name", "postgresql://me:***@host:54/name"),
        ("postgresql://me:secret@host:port/name", "postgresql://me:***@host:port/name"),
        ("postgresql:/me:secret@host/name", "postgresql:/me:***@host/name"),
        ("postgresql://host/name?password=secret&sslmode=require", "postgresql://host/name?password=***&sslmode=require"),
        ("postgresql://host/name?a=b&sslpassword=secret", "postgresql://host/name?a=b&sslpassword=***"),
    ],
)
def test_what_is_printed_of_a_url(url: str, shown: str) -> None:
    assert without_password(url) == shown
