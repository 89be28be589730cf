"""`protlat bench`: a group with one command per measurement."""

from __future__ import annotations

from typing import Any

import click

from protlat.cli.options import config_options, device_options
from protlat.config import Config


def _roofline_config() -> type[Config]:
    from protlat.pipelines.bench import RooflineConfig

    return RooflineConfig


@click.group()
def bench() -> None:
    """Measure this computer."""


@bench.command()
@click.argument("presets", nargs=-1, metavar="[PRESET]...")
@click.option(
    "--mode", "modes", multiple=True, type=click.Choice(["inference", "training"]), help="Only this one; repeatable."
)
@click.option("-o", "--output", metavar="FILE", help="JSON file for the figures.")
@device_options
@config_options(_roofline_config)
def roofline(config_path: str | None, overrides: tuple[str, ...], **given: Any) -> None:
    """Compare the speed of models with the limit of the machine.

    The limit follows from the matrix products that a model makes, counted while it runs, and from two measured ceilings:
    a large matrix product and a memory copy. PRESET: names or YAML files; tiny and small when none is given.

    \b
    protlat bench roofline
    protlat bench roofline small --mode training --threads 1
    """
    from protlat.pipelines.bench import RooflineConfig, roofline_text, run_roofline

    # Shared options carry their defaults as values: those must not hide what a config file says.
    values = {key: None if value in ("auto", ()) else value for key, value in given.items()}
    click.echo(roofline_text(run_roofline(RooflineConfig.load(config_path, overrides, **values))))
