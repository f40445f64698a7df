"""Options as a value: what they admit, and what a verdict depends on."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewriter import Options, optimize
from rewriter.kernels.architecture import Architecture
from rewriter.reference import InputError
from rewriter.run.fields import AtLeast, Flag, OneOf, option, option_fields, same
from tests.support.graphs import rule
from tests.support.runs import small

pytestmark = pytest.mark.usefixtures("own_cache")

NEGATION = rule("Neg(Neg(X))", "X", "X:[m,n]")


@pytest.mark.parametrize(
    ("values", "digest"),
    [
        ({}, "c3f657eb16b734a148f652b9b528b822"),
        ({"budget": 20}, "af22f23b1d4948a22b0e6c05a73bd0c7"),
        ({"shapes": {"b": (2, 3), "a": [1]}}, "5297a8c46c35897257e86f522d21fa83"),
        (
            {"data": [{"y": np.ones(3, np.float32), "x": np.zeros(2, np.int64)}]},
            "b688d8f35499906cd351ca3c50a7f527",
        ),
        ({"alpha": 1.2, "top": 8, "assume_finite": False}, "df52f4dc7b78e050c2b4917af490e8da"),
        (
            {"assume_attended": False, "strategy": "greedy", "reuse_layers": False},
            "4fe57b6343452a20126db03bc4426222",
        ),
        ({"kernels": False}, "b449d8623d866b13167f25b6e3e3cb79"),
        ({"architectures": (Architecture(90), Architecture(80, is_ptx=True))}, "0a285bc15cf8f48c957c52534856d3d4"),
    ],
)
def test_verdicts_of_earlier_versions_stay_valid(values: dict[str, Any], digest: str) -> None:
    """The digests are those that verdicts have been kept under since before options were a value."""
    assert Options(**values).digest() == digest


@pytest.mark.parametrize(
    "values",
    [
        {"provider": "cpu"},
        {"rules": "my.rules"},
        {"explain": "all"},
        {"cache": Path("other.sqlite")},
        {"costs": Path("table.json")},
        {"device": "h200"},
        {"deterministic": True},
        {"kernels_folder": Path("kept")},
        {"use_verdicts": False},
    ],
)
def test_a_verdict_does_not_depend_on_these(values: dict[str, Any]) -> None:
    """The target, the rules and the costs stand in a verdict's key by themselves."""
    assert Options(**values).digest() == Options().digest()


def test_every_option_has_a_flag_of_its_own() -> None:
    flags = [item.flag.name for item in option_fields(Options) if item.flag is not None]
    assert len(set(flags)) == len(flags)
    assert [item.name for item in option_fields(Options) if item.flag is None] == ["cache"], "an environment variable names it"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"budget": -1}, "budget -1 and alpha 1.05: give seconds from 0 on and a factor from 1 on"),
        ({"budget": float("inf")}, "budget inf and alpha 1.05: give seconds"),
        ({"budget": float("nan")}, "budget nan and alpha 1.05: give seconds"),
        ({"alpha": 0.9}, "budget 60.0 and alpha 0.9: give seconds"),
        ({"alpha": float("inf")}, "budget 60.0 and alpha inf: give seconds"),
        (
            {"strategy": "luck"},
            "unknown strategy 'luck': use backtracking, greedy, sequential, substitutions, layouts, schemes, refined",
        ),
        ({"top": 0}, "top 0: give a finite number from 1 on"),
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as problem:
        Options(**values)
    assert str(problem.value).startswith(message)


def test_options_do_not_change() -> None:
    options = Options(budget=20)
    with pytest.raises(FrozenInstanceError):
        options.budget = 30  # type: ignore[misc]
    assert replace(options, top=3) == Options(budget=20, top=3)


def test_a_value_and_keywords_are_the_same(tmp_path: Path) -> None:
    source = small(tmp_path / "m.onnx")
    fields: dict[str, Any] = {"device": "cpu", "deterministic": True, "rules": [NEGATION]}
    by_value = optimize(source, tmp_path / "a.onnx", Options(**fields))
    by_keyword = optimize(source, tmp_path / "b.onnx", **fields)
    assert by_value.improved and by_keyword.improved
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    with pytest.raises(TypeError, match=r"give options, or their fields \(budget\), not both"):
        optimize(source, tmp_path / "a.onnx", Options(), budget=3)
    with pytest.raises(TypeError, match="'budgt'"):
        optimize(source, tmp_path / "a.onnx", budgt=3)  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True, kw_only=True)
class _More(Options):
    """Options with another three: nothing but their fields says so."""

    patience: float = option(2.0, flag=Flag("--patience", "How long."), check=AtLeast(0.5), verdict=same)
    mood: str = option("calm", flag=Flag("--mood", "How."), check=OneOf(("calm", "eager")), verdict=str.upper)
    colour: str = option("grey", flag=Flag("--colour"))


def test_a_field_that_is_added_is_checked_and_part_of_the_digest() -> None:
    assert _More().digest() == Options().digest(), "a new option at its default leaves verdicts valid"
    digests = {_More().digest(), _More(patience=3.0).digest(), _More(mood="eager").digest(), _More(alpha=1.2).digest()}
    assert len(digests) == 4
    assert _More(colour="green").digest() == _More().digest()
    with pytest.raises(InputError, match=r"^patience 0.1: give a finite number from 0.5 on$"):
        _More(patience=0.1)
    with pytest.raises(InputError, match=r"^unknown mood 'wild': use calm, eager$"):
        _More(mood="wild")
    with pytest.raises(InputError, match="unknown strategy 'luck'"):
        _More(strategy="luck")


@pytest.mark.parametrize("field", ["costs", "cache", "kernels_folder"])
def test_a_path_that_is_a_text_is_refused_with_the_way_out(field: str) -> None:
    with pytest.raises(InputError, match=f"{field} 'table.json': give a pathlib.Path"):
        Options(**{field: "table.json"})  # type: ignore[arg-type]
