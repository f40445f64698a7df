"""``python -m tools.zoo`` writes the models that the project measures itself on."""

from __future__ import annotations

from pathlib import Path

import click
import onnx

from tools.zoo.built import lora_block, write_big
from tools.zoo.exported import ARCHITECTURES, EXPORT_TOLERANCE, SIZED_ARCHITECTURES, SMALL_ARCHITECTURES, export_model
from tools.zoo.light import light_models, load_light
from tools.zoo.running import describe
from tools.zoo.skeletons import fill, read_skeleton, write_skeleton
from tools.zoo.steps import STEPS, export_step
from tools.zoo.taso import TASO_MODELS, in_half

DEFAULT_DIR = Path("zoo_models")


directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DIR,
    show_default=True,
    help="Where the files go.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Writes the models that the project measures itself on."""


@main.command()
@click.argument(
    "names",
    metavar="[NAME]...",
    nargs=-1,
    type=click.Choice([*ARCHITECTURES, *SMALL_ARCHITECTURES, *SIZED_ARCHITECTURES]),
)
@directory_option
@click.option("--fp16", is_flag=True, help="Export in half precision, as NAME_fp16.onnx.")
@click.option("--small", is_flag=True, help="By default the small ones, of a few layers and channels.")
def export(names: tuple[str, ...], directory: Path, fp16: bool, small: bool) -> None:
    """Exports models of transformers with torch.onnx and checks them in onnxruntime.

    Default: all but the small ones and those with a size in their names, which the GPU benchmark measures.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in names or (SMALL_ARCHITECTURES if small else ARCHITECTURES):
        path = directory / (f"{name}_fp16.onnx" if fp16 else f"{name}.onnx")
        error = export_model(name, path, fp16)
        click.echo(f"{describe(path)}; differs from torch by {error:.1e}")
        if not error <= EXPORT_TOLERANCE[fp16]:
            raise click.ClickException(f"{path} does not compute what torch does: relative error {error:.1e}")


@main.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=click.Choice(list(STEPS)))
@directory_option
@click.option("--fp16", is_flag=True, help="Export in half precision, as NAME_fp16.onnx.")
def step(names: tuple[str, ...], directory: Path, fp16: bool) -> None:
    """Exports steps of transformers' decoders, with a cache, with torch.onnx and checks them in onnxruntime."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = directory / (f"{name}_fp16.onnx" if fp16 else f"{name}.onnx")
        error = export_step(STEPS[name], path, fp16)
        click.echo(f"{describe(path)}; differs from torch by {error:.1e}")
        if not error <= EXPORT_TOLERANCE[fp16]:
            raise click.ClickException(f"{path} does not compute what torch does: relative error {error:.1e}")


@main.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(list(light_models())))
@directory_option
@click.option("--seed", default=0, show_default=True, help="Seed of the weights.")
def light(names: tuple[str, ...], directory: Path, seed: int) -> None:
    """Writes the CNNs of the onnx wheel (all by default) with random weights, as light_NAME.onnx."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names or light_models():
        path = directory / f"light_{name}.onnx"
        onnx.save(load_light(name, seed), path)
        click.echo(describe(path))


@main.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(list(TASO_MODELS)))
@directory_option
@click.option("--seed", default=0, show_default=True, help="Seed of the weights.")
@click.option("--batch", default=1, show_default=True, help="Batch; another one than 1 stands in the name: NAME_b16.onnx.")
@click.option("--fp16", is_flag=True, help="In half precision, as NAME_fp16.onnx.")
def taso(names: tuple[str, ...], directory: Path, seed: int, batch: int, fp16: bool) -> None:
    """Writes TASO's own models (all by default) with random weights."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names or TASO_MODELS:
        path = directory / f"{name}{f'_b{batch}' if batch > 1 else ''}{'_fp16' if fp16 else ''}.onnx"
        model = TASO_MODELS[name](seed, batch)
        onnx.save(in_half(model) if fp16 else model, path)
        click.echo(describe(path))


@main.command()
@directory_option
@click.option("--gigabytes", default=3.0, show_default=True, help="Size of all weights, in 10⁹ bytes.")
@click.option("--width", default=4096, show_default=True, help="Rows and columns of each weight.")
def big(directory: Path, gigabytes: float, width: int) -> None:
    """Writes big.onnx, a model of any size, with external data."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "big.onnx"
    write_big(path, gigabytes, width)
    click.echo(describe(path))


@main.command("skeleton")
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
def skeleton_command(model: Path, out: Path) -> None:
    """Writes MODEL without its weights to OUT, which 'fill' gives random ones again."""
    write_skeleton(onnx.load(model), out)
    click.echo(f"{out}: {out.stat().st_size / 1e3:.0f} kB, of {model.stat().st_size / 1e6:.1f} MB")


@main.command("fill")
@click.argument("source", metavar="SKELETON", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--seed", default=0, show_default=True, help="Seed of the weights.")
def fill_command(source: Path, out: Path, seed: int) -> None:
    """Writes SKELETON with random weights to OUT."""
    try:
        onnx.save(fill(read_skeleton(source), seed), out)
    except ValueError as problem:
        raise click.ClickException(str(problem)) from None
    click.echo(describe(out))


@main.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file to write.")
def block(out: Path) -> None:
    """Writes the demo model: a transformer block with LoRA adapters."""
    out.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(lora_block(), out)
    click.echo(describe(out))


if __name__ == "__main__":
    main()
