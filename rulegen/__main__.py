"""``python -m rulegen`` is the command ``rulegen``."""

from rulegen.cli import main

main()
