"""Writes rules_db/shipped/kernels.rules: the kernels that the rewriter builds of the programs of the Mirage paper.

python -m tools.ship.kernel_rules rules_db/shipped/kernels.rules
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from mugraph.onnx import load
from rewriter.kernels.fuse.fusable import propose
from rewriter.kernels.fuse.kernels import KernelBuilder
from rewriter.kernels.fuse.scope import Form
from rules_db.exchange import format_rules
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.rule import Rule
from tools.mirage import MirageProgram, programs

HEADING = """# Multi-level rules: programs of the Mirage paper and the one kernel that each becomes.
# Written by tools/ship/kernel_rules.py.

"""


def rules_of(program: MirageProgram) -> Iterator[Rule]:
    """The rules that make one kernel of a program, in each form that there is."""
    graph, builder = load(program.model()).graph, KernelBuilder()
    for fusable in propose(graph):
        if set(fusable.roots) == set(graph.outputs) and set(fusable.operands.values()) == set(graph.inputs):
            seen = set()
            for form in (Form(), Form(accumulated=True)):
                rule = builder.general(fusable, form)
                kernel = kernel_of_rule(rule)
                assert kernel is not None
                if kernel.blocks not in seen:
                    seen.add(kernel.blocks)
                    yield rule


def text() -> str:
    """The file's text: a rule is general, so that one batch makes those of all."""
    rules = {rule.id: rule for program in programs() if program.batch == 8 for rule in rules_of(program)}
    return HEADING + format_rules(rules.values())


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def main(file: Path) -> None:
    """Writes FILE with the rules of the kernels of the Mirage paper's programs."""
    file.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
