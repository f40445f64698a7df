"""``rulegen``: the command line of the rule generator."""

from __future__ import annotations

import sys
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module

import click

from mugraph.console import run_click
from mugraph.interrupts import USER_EXIT
from rules_db.exchange import RuleTextError
from rules_db.files import StoreError
from rules_db.trust.properties import AxiomError

__all__ = ["cli", "main"]


_GROUPS = {
    "Find rules": {"grow": "growing", "mine": "mining", "spell": "spelling", "ship": "growing", "work": "lending"},
    "Prove and look at them": {
        "prove": "showing",
        "explain": "showing",
        "show": "showing",
        "stats": "showing",
        "audit": "auditing",
    },
    "Keep a database": {
        "import": "sharing",
        "export": "sharing",
        "merge": "sharing",
        "status": "keeping",
        "remove": "keeping",
        "prune": "keeping",
    },
    "Share it": {"pull": "sharing", "push": "sharing", "verify-log": "keeping"},
}
"""The commands under the headings of the help, each with its module. All of these import for more than a second, and what one
command needs not for half of that."""
_COMMANDS = {name: module for commands in _GROUPS.values() for name, module in commands.items()}


class _Commands(click.Group):
    """Imports a command when it is asked for, and lists them under headings."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"rulegen.cli.{_COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        most = formatter.width - max(map(len, _COMMANDS))
        for heading, names in _GROUPS.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            with formatter.section(heading):
                formatter.write_dl([(name, command.get_short_help_str(most)) for name, command in commands.items() if command])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="onnx-superopt")
def cli() -> None:
    """Generates, certifies and audits rewrite rules."""


def main() -> None:
    """The console script: one line and exit code 2 for whatever the user can put right."""
    try:
        run_click(cli, "rulegen", (StoreError, RuleTextError, AxiomError))
    except BrokenProcessPool:
        print(
            "rulegen: processes that do the work die again and again, perhaps for want of memory; try --jobs 1", file=sys.stderr
        )
        sys.exit(USER_EXIT)
