"""`protlat predict contacts`."""

from __future__ import annotations

from typing import Any

import click

from protlat.cli.options import config_options, device_options, sequence_options
from protlat.config import Config


def _config() -> type[Config]:
    from protlat.pipelines.predict_contacts import PredictContactsConfig

    return PredictContactsConfig


@click.command(no_args_is_help=True)
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option("-i", "--input", "more_inputs", multiple=True, metavar="INPUT", help="The same as a positional INPUT.")
@click.option("-m", "--model", type=click.Path(exists=True, file_okay=False), help="Model folder with a contact head.")
@click.option(
    "-o", "--output", metavar="FILE", help="Maps: .npz; top pairs: .tsv, .json or .parquet, '-' is standard output."
)
@click.option("--top", type=click.FloatRange(min=0, min_open=True), help="Pairs listed, times residues. [default: 2.0]")
@click.option("--min-probability", type=click.FloatRange(0, 1), help="Leave less probable pairs out. [default: 0]")
@click.option("--min-separation", type=click.IntRange(min=1), help="Leave nearer pairs out of tables. [default: 6]")
@click.option("--dense-max", type=click.IntRange(min=0), help="Longest protein with a whole map. [default: 1000]")
@click.option("--plot", metavar="PNG", help="Picture of the map of a single protein.")
@click.option("--structure", metavar="FILE", help="PDB or mmCIF: compare the map of a single protein with the truth.")
@click.option("--chain", metavar="ID", help="Chain of the structure. [default: the first that fits]")
@click.option("--tile", type=click.IntRange(min=16), help="Residues to a side computed at once. [default: 128]")
@sequence_options
@click.option("--overwrite", is_flag=True, default=None, help="Replace outputs.")
@device_options
@config_options(_config)
def contacts(
    inputs: tuple[str, ...],
    more_inputs: tuple[str, ...],
    config_path: str | None,
    overrides: tuple[str, ...],
    **given: Any,
) -> None:
    """Predict which residues touch: C-beta (C-alpha for glycine) closer than 8 angstrom.

    \b
    protlat predict contacts proteins.fasta -m contacts -o maps.npz
    protlat predict contacts proteins.fasta -m contacts -o pairs.tsv --top 1
    protlat predict contacts one.fasta -m contacts -o pairs.tsv --plot map.png --structure 1abc.cif.gz
    """
    from protlat.pipelines.predict_contacts import PredictContactsConfig, run
    from protlat.reporting import print_summary

    values = {**given, "inputs": (*inputs, *more_inputs)}
    for option in ("unknown", "gaps", "stops"):
        values[f"policy__{option}"] = values.pop(option)
    # Shared options carry their defaults as values: those must not hide what a config file says.
    for option in ("device", "dtype"):
        values[option] = None if values[option] == "auto" else values[option]
    values = {key: (list(value) or None) if isinstance(value, tuple) else value for key, value in values.items()}
    print_summary("predict contacts", run(PredictContactsConfig.load(config_path, overrides, **values)))
