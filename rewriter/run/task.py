"""Reading: a model, its target and its options as one task."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import onnx

from mugraph.files import same_file
from mugraph.onnx import Model, check_output, load, save
from mugraph.onnx.cleaning import Cleaned
from mugraph.onnx.previews import written_out
from mugraph.terms.shape import DataType, Dim, TensorType, shape_at
from rewriter.reference import InputError, bind_sizes, check_data, check_memory, choices, random_inputs
from rewriter.run.background import in_background
from rewriter.run.options import Options
from rewriter.run.target import Target
from rules_db.entries import RuleBook
from rules_db.files import check_writable
from rules_db.library import open_presumed, presumed_rules
from rules_db.trust.certificate import Trust
from rules_db.trust.rule import Rule

__all__ = [
    "Task",
    "default_output",
    "holds_bfloat16",
    "names_rules",
    "names_within",
    "not_judged",
    "read_task",
    "without_previews",
]

_ALIKE = 3
"""Names that a question about an unknown one is answered with."""
_SHOWN = 4
"""Operators that a line on what is not understood names."""


@dataclass(frozen=True, slots=True)
class Task:
    """A model to be optimised for a target.

    Attributes:
        model: to start from: as it was read, or cleaned up.
        original: as it was read, or written out (:func:`without_previews`).
        name: what the summary calls it.
        output: the file to write.
        sizes: of the model's dimension symbols, as it is measured.
        assumed: the sizes among these that nobody gave, as ``symbol = size``.
        cleaned: what cleaning did, where ``model`` is its result.
        written: a file of that, which lasts as long as the run.
        seconds_to_write: that making this file took, with the weights that candidates share.
        is_unclean: something was to be cleaned up, and outputs would not have been the same.
        rules: those that were given; ``None`` for the shipped ones.
        remarks: what else the user should know about the model and the rules.
    """

    model: Model
    original: Model
    name: str
    output: Path
    options: Options
    target: Target
    sizes: Mapping[str, Dim]
    assumed: tuple[str, ...]
    cleaned: Cleaned | None = None
    written: Path | None = None
    seconds_to_write: float | None = None
    is_unclean: bool = False
    rules: RuleBook | None = None
    remarks: tuple[str, ...] = ()

    @property
    def measures(self) -> bool:
        """Whether the target is here and may be asked for times."""
        return self.target.here and not self.options.deterministic

    def choices(self) -> list[dict[str, float]]:
        """Numbers for the inputs that decide what the model does: those to time first, then others."""
        return choices(self.model, self.sizes)

    def feeds(self, chosen: Mapping[str, float] | None = None) -> list[Mapping[str, np.ndarray]]:
        """The inputs that candidates are compared and timed on: the user's, and random ones.

        Args:
            chosen: one of :meth:`choices`; by default the first.
        """
        return [*self.options.data, *(random_inputs(self.model, self.sizes, seed, chosen=chosen) for seed in (1, 2))]

    def notes(self) -> list[str]:
        """Lines about the model as it was read, and about what was asked for, for the summary."""
        done = "measured" if self.options.searches else "checked" if self.options.clean else None
        sizes = [f"{done} with {', '.join(self.assumed)}; set sizes with --input NAME=..."] if done and self.assumed else []
        is_unheeded = self.options.deterministic and self.options.searches and self.options.budget != Options().budget
        unheeded = ["--deterministic reads no clock: --budget did not end the run"] if is_unheeded else []
        return [*self.original.notes, *sizes, *unheeded, *self.remarks]


def read_task(
    source: str | Path | onnx.ModelProto,
    output: str | Path | None,
    options: Options,
    target: Target,
    until: float = math.inf,
) -> Task:
    """Reads a model, and rules that are given, and sees whether the rest of the task fits it.

    Ensures that ``output`` lies in a directory that exists and is none of the model's own files unless that was asked for, that
    every dimension symbol of an input has a size, that what is computed can be held where it is going to be, and that the user's
    data are inputs of the model.

    What is given is read whether or not the run comes to use it: a budget that ends early must hide no mistake.

    Args:
        output: default is the model's name with ``.superopt.onnx``, or the model's file where it is to be replaced; a model in
            memory needs one.
        until: the instant of :func:`time.monotonic` after which no more rules are checked that are given, but for a few.

    Raises:
        ModelError, InputError, StoreError: one clear message each.
    """
    told = list[str]()
    rules = _given_rules(options, told.append, until)
    model = load(source)
    if options.searches:
        in_background(model.digest)  # the key of all that is remembered of it, which is asked for once it is cleaned up
    path = _output(model, output, options.in_place)
    check_data(model, options.data)
    sizes, assumed = bind_sizes(model, options.shapes or {}, data=options.data)
    if options.searches or options.clean:
        check_memory(model, sizes)
    if options.explain is not None:
        _check_asked(model, presumed_rules() if rules is None else rules, options.explain)
    name = "model" if isinstance(source, onnx.ModelProto) else str(source)
    return Task(model, model, name, path, options, target, sizes, tuple(assumed), rules=rules, remarks=tuple(told))


def names_within(model: Model) -> list[str]:
    """Of the values and nodes of a model."""
    return list(dict.fromkeys([*model.values, *(origin.name for origin in model.origins)]))


def names_rules(asked: str, rules: RuleBook) -> bool:
    """Whether a word is the identity of a rule, or the beginning of one."""
    return _is_named(asked, rules.ids)


def _is_named(asked: str, names: Iterable[str]) -> bool:
    return any(name.startswith(asked.rstrip("<>")) for name in names)


def _check_asked(model: Model, rules: RuleBook, asked: str) -> None:
    """Sees whether there is what is to be explained. Raises InputError where that is no rule, no node and no value."""
    names = names_within(model)
    if _is_named(asked, rules.unchecked):
        raise InputError(f"--explain {asked}: there was no time to check that rule; --budget gives more, or run it again")
    if asked != "all" and asked not in names and not names_rules(asked, rules):
        near = get_close_matches(asked, filter(None, (*names, *rules.ids)), _ALIKE)
        meant = f"; did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"--explain {asked}: neither a rule, a node nor a value of the model{meant}")


def _given_rules(options: Options, tell: Callable[[str], None], until: float) -> RuleBook | None:
    """The rules that options name, if they do; tells which of them this version cannot use. Raises StoreError."""
    given: str | Sequence[Rule] | None = options.rules
    if given is None:
        return None
    return open_presumed(given, Trust(options.trust), tell, until) if isinstance(given, str) else RuleBook(given)


def without_previews(task: Task, folder: Path) -> Task:
    """A task whose model came with operators of ONNX's preview domain, as if it had come with what ONNX defines these by.

    No runtime here runs them: so this model is the one that others are compared with, and that is written where none is better.

    Args:
        folder: for the file of that model, which lasts as long as the run.
    """
    out = written_out(task.model)
    if out is None:
        return task
    (place := folder / "written-out").mkdir()
    path = place / task.output.name  # files of weights are named by it
    save(out.model, out.model.as_it_came, path)
    model = load(path)
    sizes, assumed = bind_sizes(model, task.options.shapes or {}, data=task.options.data)
    check_memory(model, sizes)
    kinds = ", ".join(f"{count} {op_type}" for op_type, count in out.operators.items())
    remark = f"{kinds} of ONNX's preview domain, for which runtimes have no kernel: written out in ONNX's other operators"
    return replace(
        task,
        model=model,
        original=model,
        sizes=sizes,
        assumed=tuple(assumed),
        remarks=(*task.remarks, f"{remark}; compared with that"),
    )


def holds_bfloat16(types: Iterable[TensorType | None]) -> bool:
    """Whether one of some types, as far as they are known, is of bfloat16."""
    return any(type_ is not None and type_.dtype == DataType.BFLOAT16 for type_ in types)


def default_output(model: Path, in_place: bool) -> Path:
    """The file to write where none is named."""
    return model if in_place else model.with_suffix(".superopt.onnx")


def _output(model: Model, output: str | Path | None, in_place: bool) -> Path:
    """The file to write. Raises InputError, ModelError, StoreError where it cannot be that."""
    if output is None and model.path is None:
        raise InputError("a model in memory needs an output path")
    if output is not None:
        path = Path(output)
    else:
        assert model.path is not None
        path = default_output(model.path, in_place)
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"{path}: cannot be written there; name a file in an existing directory")
    check_writable(path)
    check_output(model, path)
    if in_place and (model.path is None or not same_file(path, model.path)):
        raise InputError(f"{path} is not the model: give --in-place to replace the model, or another output, not both")
    for file in model.weights.files:
        if same_file(path, file):
            if file != model.path:
                raise InputError(f"{path} holds weights of {model.path}; name another output")
            if not in_place:
                raise InputError(f"{path} is the model itself; name another output, or give --in-place to replace it")
    return path


def not_judged(model: Model, sizes: Mapping[str, Dim]) -> Iterator[str]:
    """A line on the parts of a model that no rule and no price is about.

    Args:
        sizes: of its dimension symbols.
    """
    graph, opaque, sizeless, count = model.graph, Counter[str](), 0, 0
    for node in graph.nodes():
        if all(graph.tables.constant[value] for value in node.values):
            continue
        count += 1
        if node.is_opaque and node.origin is not None and node.origin not in model.bodies:
            opaque[model.origins[node.origin].op_type] += 1
        sizeless += any(shape_at(graph.type(value), sizes) is None for value in (*node.inputs, *node.values))
    kinds = [f"{number} {op_type}" for op_type, number in opaque.most_common(_SHOWN)]
    kinds += [f"{len(opaque) - _SHOWN} other operators"] if len(opaque) > _SHOWN else []
    facts = [f"{', '.join(kinds)} not understood"] if kinds else []
    facts += [f"{sizeless} of {count} nodes without size"] if sizeless else []
    if facts:
        yield f"{', '.join(facts)}: left as they are, and without cost in predictions"
