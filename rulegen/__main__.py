"""``python -m rulegen`` is the command ``rulegen``."""

from rulegen.cli.main import main

main()
