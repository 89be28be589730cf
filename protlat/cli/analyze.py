"""`protlat analyze`: a group with one command per question about embeddings."""

from __future__ import annotations

from typing import Any

import click

from protlat.cli.options import config_options
from protlat.config import Config


def _transfer_config() -> type[Config]:
    from protlat.pipelines.analyze import TransferConfig

    return TransferConfig


@click.group()
def analyze() -> None:
    """Ask questions of embeddings."""


@analyze.command(no_args_is_help=True)
@click.argument("query", required=False)
@click.option("--reference", metavar="FILE", help="Embeddings of labelled proteins, by the same model.")
@click.option("--labels", metavar="TABLE", help="Columns identifier and label; .csv, or tab-separated.")
@click.option("--label-column", metavar="NAME", help="Column of the labels. [default: label]")
@click.option("-o", "--output", metavar="FILE", help="Table: .tsv, .json or .parquet; '-' is standard output.")
@click.option("--metric", type=click.Choice(["cosine", "euclidean"]), help="[default: cosine]")
@click.option("--bandwidth", metavar="auto|H", help="Width of the kernel; auto: by leaving one out. [default: auto]")
@click.option("--task", type=click.Choice(["auto", "classes", "numbers"]), help="What labels are. [default: auto]")
@click.option("--kind", type=click.Choice(["mean", "cls"]), help="Vectors to compare, when the files hold several.")
@click.option("--layer", type=int, help="Layer to compare, when the files hold several.")
@click.option(
    "--far", type=float, help="Share of references' own distances beyond which it notes 'far'. [default: 0.99]"
)
@click.option("--seed", type=click.IntRange(min=0), help="Picks the references that are left out. [default: 0]")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads to use (default: all).")
@click.option("--overwrite", is_flag=True, default=None, help="Replace the output.")
@config_options(_transfer_config)
def transfer(config_path: str | None, overrides: tuple[str, ...], **given: Any) -> None:
    """Label the proteins of QUERY by the nearest labelled ones.

    \b
    protlat embed labelled.fasta -m run -o reference.h5
    protlat embed new.fasta -m run -o new.h5
    protlat analyze transfer new.h5 --reference reference.h5 --labels labels.tsv -o new.tsv
    """
    from protlat.config import parse_scalar
    from protlat.pipelines.analyze import TransferConfig, run
    from protlat.reporting import print_summary

    if given["bandwidth"] is not None:
        given["bandwidth"] = parse_scalar(given["bandwidth"])
    print_summary("analyze transfer", run(TransferConfig.load(config_path, overrides, **given)))
