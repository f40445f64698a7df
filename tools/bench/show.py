"""Prints the tables of benchmark results that were written as JSON, several runs as one.

    python -m tools.bench.show first.json second.json

Rows of one model from several files stand together; of one tool in several, the last file's. Ratios are each to the
original in the same run; runs on different machines do not belong in one table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from rewriter.reference import Error
from rewriter.run.timings import Timing
from tools.bench.gpu_models import print_gpu_tables
from tools.bench.models import Row, print_tables


def read_results(files: tuple[Path, ...]) -> tuple[str, list[dict[str, Any]]]:
    """The environment and the results of all models in ``files``, in the form that the tables take.

    Raises:
        click.ClickException: a file is no benchmark result, or comes from another environment than the first.
    """
    environment, merged = "", {}
    for file in files:
        try:
            content = json.loads(file.read_text())
            here, models = content["environment"], [_result(model) for model in content["models"]]
        except (ValueError, KeyError, TypeError) as problem:
            raise click.ClickException(f"{file}: not written by a benchmark of this version ({problem!r})") from None
        if environment not in ("", here):
            raise click.ClickException(f"{file}: measured on '{here}', the files before it on '{environment}'")
        environment = here
        for model in models:
            earlier = merged.setdefault(model["model"], model)
            if earlier is not model:
                rows = {row.tool: row for row in earlier["rows"] + model["rows"]}
                merged[model["model"]] = {
                    **model,
                    "rows": list(rows.values()),
                    "against": list(dict(earlier["against"] + model["against"]).items()),
                }
    return environment, list(merged.values())


def _result(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": record["model"],
        "nodes": record["nodes"],
        "error": _error(record["error"]),
        "product_share": math.nan if record["product_share"] is None else record["product_share"],
        "aa": _timing(record["aa"]),
        "rows": [_row(row) for row in record["rows"]],
        "against": [(name, _timing(timing)) for name, timing in record["against"]],
        **{key: record[key] for key in ("floor_ms", "remark") if key in record},
    }


def _row(record: Mapping[str, Any]) -> Row:
    fields = {key: record[key] for key in ("tool", "problem", "nodes", "kept", "seconds", "note", "details")}
    return Row(**fields, error=_error(record["error"]), timing=_timing(record["timing"]))


def _timing(record: Mapping[str, float] | None) -> Timing | None:
    return None if record is None else Timing(**{**record, "ratios": tuple(record.get("ratios", ()))})


def _error(record: Mapping[str, float | None] | None) -> Error | None:
    """An error; in JSON, null stands for infinity."""
    return None if record is None else Error(**{key: math.inf if value is None else value for key, value in record.items()})


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(files: tuple[Path, ...]) -> None:
    """Prints the tables of FILES, which benchmarks wrote with --json."""
    environment, results = read_results(files)
    on_gpu = all("floor_ms" in result for result in results)
    (print_gpu_tables if on_gpu else print_tables)(Console(width=240), results, environment)


if __name__ == "__main__":
    main()
