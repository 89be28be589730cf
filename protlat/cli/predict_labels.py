"""`protlat predict` without a subcommand: labels of a fine-tuned model."""

from __future__ import annotations

from typing import Any

import click

from protlat.cli.options import config_options, device_options, sequence_options
from protlat.config import Config


class LabelsByDefault(click.Group):
    """A group whose command `labels` is meant where no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["labels", *args]
        return super().parse_args(ctx, args)


def _config_class() -> type[Config]:
    from protlat.pipelines.predict_labels import PredictLabelsConfig

    return PredictLabelsConfig


@click.command(no_args_is_help=True)
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option("-i", "--input", "more_inputs", multiple=True, metavar="INPUT", help="The same as a positional INPUT.")
@click.option("-m", "--model", metavar="DIR", help="Folder made by protlat finetune.")
@click.option("-o", "--output", metavar="FILE", help="Table: .tsv, .json or .parquet; '-' is standard output.")
@click.option("--per-class", is_flag=True, default=None, help="Add a column with the probability of every class.")
@click.option(
    "--residue-table/--no-residue-table", default=None,
    help="Labels of residues: write NAME.residues.tsv with a row a residue too. [default: yes]",
)  # fmt: skip
@sequence_options
@click.option("--overwrite", is_flag=True, default=None, help="Replace outputs.")
@device_options
@config_options(_config_class)
def labels(
    inputs: tuple[str, ...],
    more_inputs: tuple[str, ...],
    config_path: str | None,
    overrides: tuple[str, ...],
    **given: Any,
) -> None:
    """Predict labels or values with a fine-tuned model; the word labels may be left out.

    \b
    protlat predict -m OUT proteins.fasta -o labels.tsv
    protlat predict -m OUT proteins.fasta -o labels.parquet --per-class
    """
    from protlat.cli.predict import masked_values
    from protlat.pipelines.predict_labels import PredictLabelsConfig, run
    from protlat.reporting import print_summary

    values = masked_values((*inputs, *more_inputs), given)
    print_summary("predict", run(PredictLabelsConfig.load(config_path, overrides, **values)))
