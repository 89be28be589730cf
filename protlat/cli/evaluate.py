"""`protlat evaluate`."""

from __future__ import annotations

from typing import Any

import click

from protlat.cli.options import config_options, device_options
from protlat.config import Config


def _config() -> type[Config]:
    from protlat.pipelines.evaluate_config import EvaluateConfig

    return EvaluateConfig


@click.command(no_args_is_help=True)
@click.argument("model", required=False, metavar="MODEL")
@click.option("-o", "--output", metavar="FOLDER", help="Folder for report.html, scores.json, scores.tsv.")
@click.option("--tasks", metavar="LIST", help="Comma-separated tasks, YAML files or labelled files. [default: all]")
@click.option("--data", metavar="FOLDER", help="Folder that the tasks' paths are relative to. [default: $PROTLAT_DATA]")
@click.option("--rows", metavar="LIST", help="Comma-separated rows: baselines and ways to use the model.")
@click.option(
    "--heldout", metavar="FOLDER", help="Shards whose validation split gives a masked-language score by source."
)
@click.option("--layer", type=int, help="Layer that probe and head read. [default: -1, the last]")
@click.option("--seed", type=click.IntRange(min=0), help="Of samples, training, resampling. [default: 0]")
@click.option("--cache", metavar="FOLDER", help="Keep vectors here for later runs. [default: deleted after each task]")
@click.option(
    "--reuse", multiple=True, metavar="FOLDER", help="Take over rows of another evaluation where they are the same."
)
@click.option("--overwrite", is_flag=True, default=None, help="Compute every row anew. [default: go on]")
@device_options
@config_options(_config)
def evaluate(config_path: str | None, overrides: tuple[str, ...], **given: Any) -> None:
    """Score a model on tasks, beside plain baselines, as one report; a rerun computes what is missing.

    \b
    protlat evaluate run --data DATA -o report
    protlat evaluate run --data DATA --tasks esol,secondary_structure -o report
    protlat evaluate run --tasks my_labels.csv --rows composition,kmer,probe -o report
    """
    from protlat.pipelines.evaluate import EvaluateConfig, run
    from protlat.reporting import print_summary

    for name in ("tasks", "rows"):
        if given[name] is not None:
            given[name] = [item.strip() for item in given[name].split(",") if item.strip()]
    # Shared options carry their defaults as values: those must not hide what a config file says.
    for option in ("device", "dtype"):
        if given[option] == "auto":
            given[option] = None
    given["reuse"] = list(given["reuse"]) or None
    print_summary("evaluate", run(EvaluateConfig.load(config_path, overrides, **given)))
