"""`protlat predict variants`."""

from __future__ import annotations

from typing import Any

import click

from protlat.cli.options import config_options, device_options
from protlat.config import Config


def _config() -> type[Config]:
    from protlat.pipelines.predict_variants import PredictVariantsConfig

    return PredictVariantsConfig


@click.command(no_args_is_help=True)
@click.argument("input", required=False, metavar="FASTA")
@click.option(
    "-m", "--model", type=click.Path(exists=True, file_okay=False), help="Model folder, or run folder of a pretraining."
)
@click.option("-o", "--output", metavar="FILE", help="Table: .tsv, .json or .parquet; '-' is standard output.")
@click.option("--mutants", metavar="FILE", help="Variants: .csv, .tsv, .parquet, or one per line; A24G, A24G:T25S.")
@click.option(
    "--mutant-column", metavar="NAME", help="Column of the variants. [default: mutant, variant, hgvs_pro ...]"
)
@click.option("--sequence-column", metavar="NAME", help="Column of whole variant sequences instead.")
@click.option("--score-column", metavar="NAME", help="Column of measured values: tell the Spearman correlations.")
@click.option("--compare-column", "compare_columns", multiple=True, metavar="NAME", help="Column of other predictions.")
@click.option("--offset", type=int, help="Number of the sequence's first residue. [default: 1]")
@click.option("--identifier", metavar="ID", help="Which sequence of the FASTA. [default: the only one]")
@click.option(
    "--sequence-from-mutants", is_flag=True, default=None, help="Take the wild type from the variants' own letters."
)
@click.option(
    "--scoring",
    type=click.Choice(["wt-marginal", "masked-marginal", "pseudo-perplexity"]),
    help="One pass; one per changed position; one per residue of each variant. [default: masked-marginal]",
)
@click.option("--scan", is_flag=True, default=None, help="Score all 20 residues at every position.")
@click.option("--plot", metavar="PNG", help="Heat map of a --scan.")
@click.option(
    "--bad", type=click.Choice(["error", "skip"]), help="Variants that do not fit: stop, or list them. [default: error]"
)
@click.option(
    "--toks-per-batch",
    type=click.IntRange(min=1),
    help="Tokens of one forward pass. [default: 8192 on a CPU, 65536 on a GPU]",
)
@click.option("--overwrite", is_flag=True, default=None, help="Replace outputs.")
@device_options
@config_options(_config)
def variants(config_path: str | None, overrides: tuple[str, ...], **given: Any) -> None:
    """Score mutations of a protein without any training on measurements.

    \b
    protlat predict variants wild.fasta -m run --mutants dms.csv --score-column fitness -o scores.tsv
    protlat predict variants wild.fasta -m run --scan -o scan.tsv --plot scan.png
    """
    from protlat.pipelines.predict_variants import PredictVariantsConfig, run
    from protlat.reporting import print_summary

    # Shared options carry their defaults as values: those must not hide what a config file says.
    for option in ("device", "dtype"):
        if given[option] == "auto":
            given[option] = None
    given["compare_columns"] = list(given["compare_columns"]) or None
    print_summary("predict variants", run(PredictVariantsConfig.load(config_path, overrides, **given)))
