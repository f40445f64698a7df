"""Writes rewriter/cost/known/: what runs found out on a device, for all that come after them.

python -m tools.ship.known rewriter/cost/known CACHE...

CACHE is a profile store that runs have filled (``profile.sqlite``) or a cost table ('superopt-costs export'). There is one file
for each GPU in them; what it says already stays where it is faster. And there is one for each provider with the fusions that
onnxruntime makes by itself: asked anew where the provider works here, else as the stores have it, and as the file says of rules
that still ship.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import onnxruntime as ort

from rewriter.cost.fused import asked_directions, kept_directions
from rewriter.cost.kernel_times import without_compiler
from rewriter.cost.known import device_in, known_directions
from rewriter.cost.store import ProfileStore
from rewriter.cost.table import CostTable, merge_tables, read_table, write_table
from rewriter.runtime_env import PROVIDERS, usable_providers
from rules_db.files import write_text
from rules_db.library import shipped_rules

_KEPT = 3
"""Trials of a kernel, the fastest, that are kept."""


def tables(cache: Path) -> Iterator[CostTable]:
    """The costs of GPUs in a profile store or table."""
    if cache.suffix == ".json":
        yield read_table(cache)
        return
    overview = ProfileStore(cache, "")
    for environment in overview.environments():
        version = next((p.removeprefix("onnxruntime ") for p in environment.split(" | ") if p.startswith("onnxruntime ")), "")
        if environment.endswith("| cuda"):
            store = ProfileStore(cache, environment)
            gpu = environment.split(" + ")[-1]  # the processor plays no part in the time of a graph
            yield merge_tables([CostTable(gpu, version, "cuda", costs, of) for costs, of in _by_compiler(store)])
            store.close()
    overview.close()


def _by_compiler(store: ProfileStore) -> Iterator[tuple[dict[str, float], dict[str, str]]]:
    """What is known, one entry at a time, since several Tritons may have compiled a kernel: times and schedules."""
    for signature, microseconds in store.costs.items():
        key, text = without_compiler(signature), store.schedules.get(signature)
        if text is not None or not key.startswith("kernel "):
            yield {key: microseconds}, {} if text is None else {key: json.dumps(json.loads(text)[:_KEPT])}


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("caches", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="CACHE...")
def main(folder: Path, caches: Sequence[Path]) -> None:
    """Writes into FOLDER what runs found out that left profile stores or cost tables."""
    groups: dict[str, list[CostTable]] = {}
    for cache in caches:
        for table in tables(cache):
            groups.setdefault(device_in(table.environment), []).append(table)
    for device, found in groups.items():
        path = folder / f"{device}.json"
        write_table(merge_tables([*([read_table(path)] if path.exists() else []), *found]), path)
    rules = shipped_rules()
    ids = {rule.id for rule in rules}
    for provider in PROVIDERS:
        answers = {direction: known for direction, known in known_directions(provider).items() if direction[:-1] in ids}
        for cache in caches if provider not in usable_providers() else ():
            if cache.suffix != ".json":
                store = ProfileStore(cache, "")
                answers |= kept_directions(rules, store, provider)
                store.close()
        if provider in usable_providers():
            answers = asked_directions(rules, provider)
        if answers:
            record = {
                "applied": sorted(direction for direction, answer in answers.items() if answer),
                "left": sorted(direction for direction, answer in answers.items() if not answer),
            }
            write_text(folder / f"onnxruntime-{ort.__version__}-{provider}.json", json.dumps(record, indent=0) + "\n")


if __name__ == "__main__":
    main()
