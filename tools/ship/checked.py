"""Checks the rules that ship and records it in the package, so that no first run has to: docs/rules.md says what that means.
What was read of them is packed beside that.

python -m tools.ship.checked rules_db/shipped/checked.json
"""

from __future__ import annotations

from pathlib import Path

import click

from rules_db.files import write_text
from rules_db.library import packed_rules, record_of_check


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def main(file: Path) -> None:
    """Checks the rules that ship and writes FILE, which says that it was done, and beside it packed.json."""
    write_text(file, record_of_check())
    write_text(file.with_name("packed.json"), packed_rules())


if __name__ == "__main__":
    main()
