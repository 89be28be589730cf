"""`protlat predict`: a group with one command per kind of answer."""

from __future__ import annotations

from typing import Any

import click

from protlat.cli.options import config_options, device_options, sequence_options
from protlat.cli.predict_contacts import contacts
from protlat.cli.predict_labels import LabelsByDefault, labels
from protlat.cli.predict_variants import variants
from protlat.config import Config


def _masked_config() -> type[Config]:
    from protlat.pipelines.predict import PredictMaskedConfig

    return PredictMaskedConfig


@click.group(cls=LabelsByDefault, no_args_is_help=True)
def predict() -> None:
    """Predict with a model: labels, unless another command is named.

    protlat predict -m OUT proteins.fasta -o labels.tsv is short for protlat predict labels.
    """


predict.add_command(labels)


@predict.command(no_args_is_help=True)
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option("-i", "--input", "more_inputs", multiple=True, metavar="INPUT", help="The same as a positional INPUT.")
@click.option(
    "-m", "--model", type=click.Path(exists=True, file_okay=False), help="Model folder, or run folder of a pretraining."
)
@click.option("-o", "--output", metavar="FILE", help="Table: .tsv, .json or .parquet; '-' is standard output.")
@click.option("--positions", metavar="LIST", help="1-based positions to mask in every sequence: 5,10 or 1-30.")
@click.option("--all-positions", is_flag=True, default=None, help="Mask every position in turn.")
@click.option(
    "--together", is_flag=True, default=None, help="Mask all --positions in one pass. [default: one at a time]"
)
@click.option("--top-k", type=click.IntRange(min=1), help="Residues listed per position. [default: 5]")
@click.option("--pseudo-perplexity", is_flag=True, default=None, help="One row per sequence: its pseudo-perplexity.")
@click.option("--plot", metavar="PNG", help="Heat map of a single protein, positions x residues.")
@sequence_options
@click.option("--overwrite", is_flag=True, default=None, help="Replace outputs.")
@device_options
@config_options(_masked_config)
def masked(
    inputs: tuple[str, ...],
    more_inputs: tuple[str, ...],
    config_path: str | None,
    overrides: tuple[str, ...],
    **given: Any,
) -> None:
    """Say which residues the model expects at <mask>, at --positions, or at every position.

    \b
    protlat predict masked proteins.fasta -m run --positions 5,10 -o masked.tsv
    protlat predict masked protein.fasta -m run --all-positions -o table.parquet --plot map.png
    protlat predict masked proteins.fasta -m run --pseudo-perplexity -o scores.tsv
    """
    from protlat.inference.masked import parse_positions
    from protlat.pipelines.predict import PredictMaskedConfig, run
    from protlat.reporting import print_summary

    if given["positions"] is not None:
        given["positions"] = parse_positions(given["positions"])
    values = masked_values((*inputs, *more_inputs), given)
    print_summary("predict masked", run(PredictMaskedConfig.load(config_path, overrides, **values)))


def masked_values(inputs: tuple[str, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Config values of the options that were given, by dotted key; None for the others."""
    values = {**given, "inputs": inputs}
    for option in ("unknown", "gaps", "stops"):
        values[f"policy__{option}"] = values.pop(option)
    # Shared options carry their defaults as values: those must not hide what a config file says.
    for option in ("device", "dtype"):
        if values[option] == "auto":
            values[option] = None
    return {key: (list(value) or None) if isinstance(value, tuple) else value for key, value in values.items()}


predict.add_command(variants)
predict.add_command(contacts)
