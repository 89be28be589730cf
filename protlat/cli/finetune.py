"""`protlat finetune`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from protlat.cli.options import config_options, device_options
from protlat.config import Config, read_yaml
from protlat.errors import CheckpointError

_PROBES = ("logistic", "ridge", "knn")
_HEADS = ("linear", "mlp", "cnn", "attention")


def _config_class() -> type[Config]:
    from protlat.pipelines.finetune_config import FinetuneConfig

    return FinetuneConfig


@click.command(no_args_is_help=True)
@click.argument("task", required=False)
@click.option("-m", "--model", metavar="DIR", help="Model folder, or run folder of a pretraining.")
@click.option("-o", "--output", metavar="DIR", help="Folder for the fine-tuned model.")
@click.option(
    "--mode", type=click.Choice(["probe", "head", "lora", "full"]),
    help="probe: scikit-learn on frozen vectors; head: a network on them; lora: adapters too; full: all weights. [default: head]",
)  # fmt: skip
@click.option(
    "--head", type=click.Choice([*_HEADS, *_PROBES]),
    help="Network or probe. [default: cnn, attention for values of sequences; logistic or ridge with --mode probe]",
)  # fmt: skip
@click.option("--data", metavar="DIR", help="Folder that the task's paths are relative to (or PROTLAT_DATA).")
@click.option("--cache", metavar="DIR", help="Folder where frozen vectors are kept. [default: among the user's caches]")
@click.option("--epochs", type=click.FloatRange(min=0, min_open=True), help="Most passes over the training split.")
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), help="Highest learning rate of the head.")
@click.option("--seed", type=click.IntRange(min=0), help="Fixes weights, order, dropout and subsamples.")
@click.option("--resume", is_flag=True, help="Go on with the run in the output folder, with its settings.")
@click.option("--overwrite", is_flag=True, help="Delete the run in the output folder first.")
@click.option("--local_rank", "--local-rank", type=int, hidden=True)
@device_options
@config_options(_config_class)
def finetune(**options: Any) -> None:
    """Train a head, adapters or a whole model on TASK: a task's name, a YAML file, or a labelled file.

    \b
    protlat finetune secondary_structure --data DATA -m run -o ss
    protlat finetune labels.fasta -m run -o out --mode probe
    protlat predict -m ss proteins.fasta -o labels.tsv

    Exit code 130 or 143 after Ctrl-C or SIGTERM: a checkpoint was saved, and --resume goes on from it.
    """
    import os

    from protlat.devices import set_threads
    from protlat.pipelines.finetune import FinetuneConfig
    from protlat.pipelines.finetune import finetune as start
    from protlat.reporting import print_summary

    config_path, values = options["config_path"], settings_of(options)
    if options["resume"] and config_path is None and options["output"] is not None:
        config_path = Path(options["output"]) / "config.yaml"
        if not config_path.is_file():
            raise CheckpointError(f"{options['output']}: there is no run here to resume")
        # The folder may have been moved since.
        values["output"] = options["output"]
        if values.get("head__kind") == (read_yaml(config_path).get("head") or {}).get("kind"):
            values.pop("head__kind", None)
    set_threads(options["threads"])
    result = start(FinetuneConfig.load(config_path, options["overrides"], **values))
    if os.environ.get("RANK", "0") == "0":
        print_summary("finetune", result.summary)
    if result.stopped_by is not None:
        # Not click's exit, whose code the group does not pass on outside its own standalone mode.
        raise SystemExit(128 + result.stopped_by)


def settings_of(options: dict[str, Any]) -> dict[str, Any]:
    """Settings that the options stand for; None where an option was not given."""
    auto = {name: None if options[name] == "auto" else options[name] for name in ("device", "dtype")}
    values: dict[str, Any] = {
        name: options[name] for name in ("task", "model", "output", "mode", "data", "cache", "seed")
    }
    values |= {
        "limits__epochs": options["epochs"],
        "optim__lr": options["lr"],
        "engine__device": auto["device"],
        "engine__dtype": auto["dtype"],
        "resume": options["resume"] or None,
        "overwrite": options["overwrite"] or None,
    }
    if options["head"] in _PROBES:
        values["probe__kind"] = options["head"]
        if options["mode"] is None:
            values["mode"] = "probe"
        elif options["mode"] != "probe":
            raise click.UsageError(
                f"--head {options['head']} is a probe: use --mode probe, or one of {', '.join(_HEADS)}."
            )
    elif options["head"] is not None:
        values["head__kind"] = options["head"]
    return values
