"""`protlat prep structures`."""

from __future__ import annotations

from typing import Any

import click

from protlat.cli.options import config_options
from protlat.config import Config


def _config_class() -> type[Config]:
    from protlat.data_prep.structures_config import PrepStructuresConfig

    return PrepStructuresConfig


@click.command("structures", no_args_is_help=True)
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@click.option(
    "-i", "--input", "more_inputs", multiple=True, metavar="INPUT", help="One more input; same as an argument."
)
@click.option(
    "-o", "--output", metavar="PATH", help="NAME.jsonl or NAME.jsonl.gz: one file; else a folder, a file each."
)
@click.option("--chain", "chains", multiple=True, metavar="ID", help="Chain to take; repeatable. [default: all]")
@click.option("--model", metavar="first|all|N", help="Model of files with several. [default: first]")
@click.option("--min-length", type=click.IntRange(min=1), help="Leave out shorter chains. [default: 7]")
@click.option("--max-length", type=click.IntRange(min=1), help="Leave out longer chains. [default: no limit]")
@click.option("--min-known", type=click.FloatRange(0, 1), help="Share of C-betas that must be known. [default: 0.5]")
@click.option("--duplicates", type=click.Choice(["keep", "drop"]), help="Chains of equal sequence. [default: keep]")
@click.option("--workers", type=click.IntRange(min=0), help="Processes. [default: by number of files]")
@click.option("--overwrite", is_flag=True, help="Replace the output.")
@config_options(_config_class)
def structures(
    inputs: tuple[str, ...],
    more_inputs: tuple[str, ...],
    config_path: str | None,
    overrides: tuple[str, ...],
    overwrite: bool,
    **options: Any,
) -> None:
    """Read sequences and coordinates of protein chains from PDB and mmCIF files, to train contact maps on.

    INPUT is any number of structure files (plain, .gz, .bz2, .xz, .zst), folders of them, or quoted patterns. A run that was
    stopped goes on when the same command is given again.

    \b
    protlat prep structures pdb/ -o chains.jsonl.gz
    protlat prep structures 1a8o.cif.gz --chain A -o 1a8o.jsonl
    """
    from protlat.data_prep.structures import run
    from protlat.data_prep.structures_config import PrepStructuresConfig
    from protlat.reporting import print_summary

    values = {key: (list(value) or None) if isinstance(value, tuple) else value for key, value in options.items()}
    config = PrepStructuresConfig.load(config_path, overrides, inputs=[*inputs, *more_inputs] or None, **values)
    print_summary("prep structures", run(config, overwrite))
