"""``python -m modeldiff`` is the command ``superopt-diff``."""

from modeldiff.command import diff_command

diff_command()
