"""``python -m tools.fuzz`` attacks the optimiser. Exit code 1: a defect was found."""

from __future__ import annotations

import click

from tools.fuzz.kernels import kernels_command
from tools.fuzz.kills import kills_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Attacks the optimiser with material that nobody chose."""


main.add_command(kernels_command)
main.add_command(kills_command)

if __name__ == "__main__":
    main()
