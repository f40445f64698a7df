"""``python -m tools.fuzz``: attacks on what the optimiser trusts, by command."""

from __future__ import annotations

import click

from tools.fuzz.kernels import kernels_command
from tools.fuzz.kills import kills_command
from tools.fuzz.rules import rules_command, stores_command, texts_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Attacks the optimiser with material that nobody chose."""


for _command in (kernels_command, kills_command, rules_command, stores_command, texts_command):
    main.add_command(_command)

if __name__ == "__main__":
    main()
