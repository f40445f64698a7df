"""``rulegen``: the command line of the rule generator."""

from __future__ import annotations

import sys
from concurrent.futures.process import BrokenProcessPool

import click

from mugraph.console import USER_EXIT, run_click
from rulegen.cli.auditing import audit_command
from rulegen.cli.growing import grow_command, mine_command, ship_command
from rulegen.cli.keeping import prune_command, remove_command, status_command, verify_log_command
from rulegen.cli.lending import work_command
from rulegen.cli.sharing import export_command, import_command, merge_command, pull_command, push_command
from rulegen.cli.showing import explain_command, prove_command, show_command, stats_command
from rulegen.cli.spelling import spell_command
from rules_db.exchange import RuleTextError
from rules_db.files import StoreError
from rules_db.trust.properties import AxiomError

__all__ = ["cli", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="onnx-superopt")
def cli() -> None:
    """Generates, certifies and audits rewrite rules."""


for _command in (
    grow_command,
    mine_command,
    spell_command,
    ship_command,
    work_command,
    stats_command,
    show_command,
    explain_command,
    prove_command,
    import_command,
    audit_command,
    export_command,
    merge_command,
    pull_command,
    push_command,
    status_command,
    remove_command,
    prune_command,
    verify_log_command,
):
    cli.add_command(_command)


def main() -> None:
    """The console script: one line and exit code 2 for whatever the user can put right."""
    try:
        run_click(cli, "rulegen", (StoreError, RuleTextError, AxiomError))
    except BrokenProcessPool:
        print(
            "rulegen: processes that do the work die again and again, perhaps for want of memory; try --jobs 1", file=sys.stderr
        )
        sys.exit(USER_EXIT)
