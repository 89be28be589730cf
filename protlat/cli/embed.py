"""`protlat embed`."""

from __future__ import annotations

from typing import Any

import click

from protlat.cli.options import config_options, device_options, sequence_options
from protlat.cli.words import WordsCommand, is_integer, one_of
from protlat.config import Config


class EmbedCommand(WordsCommand):
    words = {"--include": one_of("mean", "per_tok", "cls"), "--repr-layers": is_integer}  # noqa: RUF012 - read only


def _config_class() -> type[Config]:
    from protlat.pipelines.embed import EmbedConfig

    return EmbedConfig


@click.command(cls=EmbedCommand, no_args_is_help=True)
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option("-i", "--input", "more_inputs", multiple=True, metavar="INPUT", help="The same as a positional INPUT.")
@click.option(
    "-m", "--model", type=click.Path(exists=True, file_okay=False), help="Model folder, or run folder of a pretraining."
)
@click.option(
    "-o", "--output", "outputs", multiple=True, metavar="FILE", help=".h5, .npz, .parquet or .h5ad; may be repeated."
)
@click.option(
    "--include",
    multiple=True,
    type=click.Choice(["mean", "per_tok", "cls"]),
    metavar="KIND...",
    help="mean, per_tok, cls: one or several words. mean: over residues; per_tok: one row a residue. [default: mean]",
)
@click.option(
    "--repr-layers",
    multiple=True,
    type=int,
    metavar="N...",
    help="Layers: 0 is the token embedding, -1 the last. [default: -1]",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["h5", "npz", "parquet", "h5ad"]),
    help="Format of the outputs. [default: by their endings]",
)
@click.option(
    "--separate", is_flag=True, default=None, help="One file per kind and layer: STEM.mean.h5, STEM.per_tok.h5 ..."
)
@click.option("--store", type=click.Choice(["float16", "float32"]), help="Number type in the files. [default: float32]")
@sequence_options
@click.option(
    "--long",
    "long_policy",
    type=click.Choice(["whole", "window", "cut", "skip"]),
    help="What to do with long sequences. [default: whole]",
)
@click.option("--window", type=click.IntRange(min=2), help="Residues of a window (--long window). [default: 4096]")
@click.option("--overlap", type=click.IntRange(min=0), help="Residues that windows share and blend. [default: 512]")
@click.option("--max-length", type=click.IntRange(min=1), help="Longest sequence that cut, skip or window leave alone.")
@click.option(
    "--resume", is_flag=True, default=None, help="Go on with an unfinished run of the same model, settings and input."
)
@click.option("--overwrite", is_flag=True, default=None, help="Replace outputs and unfinished runs.")
@click.option(
    "--local_rank",
    type=int,
    hidden=True,
    expose_value=False,
    help="Passed by the deepspeed launcher; LOCAL_RANK says the same.",
)
@device_options
@config_options(_config_class)
def embed(
    inputs: tuple[str, ...],
    more_inputs: tuple[str, ...],
    config_path: str | None,
    overrides: tuple[str, ...],
    **given: Any,
) -> None:
    """Write vectors of every sequence in INPUT (FASTA files, '-' for standard input, or shard folders).

    \b
    protlat embed proteins.fasta -m run -o proteins.h5
    protlat embed proteins.fasta -m run -o all.h5 --include mean per_tok --repr-layers 0 -1
    protlat embed proteins.fasta -m run -o table.parquet -o table.h5 --resume
    """
    from protlat.pipelines.embed import EmbedConfig, run
    from protlat.reporting import print_summary

    config = EmbedConfig.load(config_path, overrides, **embed_values((*inputs, *more_inputs), given))
    rows = run(config)
    if rows:
        print_summary("embed", rows)


_KEYS = {
    "model": "model", "outputs": "outputs", "format_name": "format", "separate": "separate", "include": "vectors.include",
    "repr_layers": "vectors.repr_layers", "store": "vectors.store", "toks_per_batch": "toks_per_batch",
    "unknown": "policy.unknown", "gaps": "policy.gaps", "stops": "policy.stops", "long_policy": "long.policy", "window": "long.window",
    "overlap": "long.overlap", "max_length": "long.max_length", "split": "split", "resume": "resume",
    "overwrite": "overwrite", "device": "device", "dtype": "dtype", "threads": "threads",
}  # fmt: skip


def embed_values(inputs: tuple[str, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Config values of the options that were given, by dotted key; None for the others."""
    values = {key.replace(".", "__"): given[option] for option, key in _KEYS.items()}
    values["inputs"] = inputs
    # Shared options carry their defaults as values: those must not hide what a config file says.
    for option in ("device", "dtype"):
        if values[option] == "auto":
            values[option] = None
    return {key: (list(value) or None) if isinstance(value, tuple) else value for key, value in values.items()}
