"""Checks the rules that ship and records it in the package, so that no first run has to: docs/rules.md says what that means.

python -m tools.ship.checked rules_db/shipped/checked.json
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rules_db.files import write_text
from rules_db.library import record_of_check


def main(arguments: Sequence[str]) -> None:
    (file,) = arguments
    write_text(file, record_of_check())


if __name__ == "__main__":
    main(sys.argv[1:])
