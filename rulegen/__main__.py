"""``python -m rulegen`` is the command ``rulegen``."""

from rulegen.cli import rulegen_command

rulegen_command()
