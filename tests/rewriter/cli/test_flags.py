"""Flags of a command follow from the fields of options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from rewriter.cli.flags import flags, values_of_flags
from rewriter.cli.main import main
from rewriter.reference import InputError
from rewriter.run.fields import AtLeast, Flag, OneOf, option, option_fields, same
from rewriter.run.options import Options


def _even(word: int) -> int:
    if word % 2:
        raise InputError(f"--pairs {word}: odd")
    return word // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _More(Options):
    """Options with one more of each kind."""

    patience: float = option(2.0, flag=Flag("--patience", "How long."), check=AtLeast(0.5), verdict=same)
    pairs: int = option(4, flag=Flag("--pairs", "How many.", read=_even), check=AtLeast(1))
    mood: str = option("calm", flag=Flag("--mood", "How."), check=OneOf(("calm", "eager")))
    loud: bool = option(False, flag=Flag("--loud", "With noise."))
    polite: bool = option(True, flag=Flag("--rude", "Without manners.", negates=True))
    tidy: bool = option(True, flag=Flag("--tidy/--untidy", "In order."))
    place: Path | None = option(None, flag=Flag("--place", "Where.", metavar="DIR", is_path=True))
    reason: str | None = option(None, flag=Flag("--reason", "Why.", alone="because"))
    names: tuple[str, ...] = option((), flag=Flag("--name", "Who.", is_repeatable=True, read=tuple))
    secret: int = option(7)


def _command(asked: list[_More], only: tuple[str, ...] | None = None) -> click.Command:
    @click.command()
    @flags(_More, only)
    def command(**written: Any) -> None:
        asked.append(_More(**values_of_flags(_More, written)))

    return command


def _given(*words: str) -> _More:
    asked: list[_More] = []
    result = CliRunner().invoke(_command(asked), words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return asked[0]


def _refused(*words: str) -> Result:
    result = CliRunner().invoke(_command([]), words)
    assert result.exit_code != 0
    return result


def test_a_field_that_is_added_is_a_flag() -> None:
    assert _given("--patience", "3").patience == 3.0
    assert _given("--pairs", "6").pairs == 3
    assert _given("--mood", "eager").mood == "eager"
    assert _given("--loud").loud and not _given("--rude").polite and not _given("--untidy").tidy
    assert _given("--place", "here").place == Path("here")
    assert [_given(*words).reason for words in ((), ("--reason",), ("--reason", "x"))] == [None, "because", "x"]
    assert _given("--name", "a", "--name", "b").names == ("a", "b")


def test_without_flags_the_options_are_the_defaults() -> None:
    asked, usual = _given("--pairs", "8"), _More()
    for item in option_fields(_More):
        if item.name != "shapes":
            assert getattr(asked, item.name) == getattr(usual, item.name), item.name
    assert not asked.shapes and asked.digest() == usual.digest()


def test_the_help_says_what_the_field_says() -> None:
    text = CliRunner().invoke(_command([]), ["--help"]).output
    for line in ("--patience FLOAT RANGE", "How long.  [default: 2.0; x>=0.5]", "--mood [calm|eager]", "How.  [default: calm]"):
        assert line in text
    assert "--place DIR" in text and "--rude" in text and "secret" not in text
    assert text.index("--no-verdict-cache") < text.index("--patience") < text.index("--mood")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--patience", "0.1"), "0.1 is not in the range x>=0.5"),
        (("--pairs", "many"), "'many' is not a valid integer"),
        (("--mood", "wild"), "'wild' is not one of 'calm', 'eager'"),
        (("--secret", "1"), "No such option"),
    ],
)
def test_click_refuses_what_a_field_does_not_admit(words: tuple[str, ...], message: str) -> None:
    result = _refused(*words)
    assert result.exit_code == 2 and message in result.output


def test_what_click_lets_pass_is_still_checked() -> None:
    assert str(_refused("--pairs", "3").exception) == "--pairs 3: odd"
    assert str(_refused("--patience", "nan").exception) == "patience nan: give a finite number from 0.5 on"


def test_a_command_may_take_some_flags_only() -> None:
    text = CliRunner().invoke(_command([], ("patience", "shapes")), ["--help"]).output
    assert "--patience" in text and "--input" in text and "--budget" not in text and "--mood" not in text


def test_the_command_has_the_flags_of_the_options_under_their_headings_in_their_order() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    flags = [item.flag for item in option_fields(Options) if item.flag is not None]
    for heading in {flag.group for flag in flags}:
        assert heading, "every option has a heading"
        listed = text.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]
        names = [flag.name.partition("/")[0] for flag in flags if flag.group == heading]
        places = [f"\n{listed}".index(f"\n  {name}") for name in names]
        assert places == sorted(places)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--budget", "-1"), "Invalid value for '--budget': -1.0 is not in the range x>=0."),
        (("--alpha", "0.5"), "Invalid value for '--alpha': 0.5 is not in the range x>=1.0."),
        (("--top", "0"), "Invalid value for '--top': 0 is not in the range x>=1."),
        (
            ("--strategy", "luck"),
            "'luck' is not one of 'backtracking', 'greedy', 'sequential', 'substitutions', 'layouts', 'schemes', 'refined'.",
        ),
        (("--provider", "tpu"), "'tpu' is not one of 'cpu', 'cuda', 'auto'."),
        (("--budget", "nan"), "onnx-superopt: budget nan and alpha 1.05: give seconds from 0 on and a factor from 1 on"),
        (("--arch", "sm_1"), "onnx-superopt: --arch: 'sm_1' is no architecture; give for example sm_80,sm_90, and compute_80"),
        (("--arch", "sm_9000"), "onnx-superopt: --arch: 'sm_9000' is no architecture; give for example sm_80,sm_90"),
        (("--input", "x2"), "onnx-superopt: --input x2: write NAME=2x128, sizes joined by 'x' (NAME= for a scalar)"),
    ],
)
def test_the_command_refuses_in_the_same_words_as_ever(words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(main, ["model.onnx", *words])
    assert result.exit_code == 2 and message in result.output
