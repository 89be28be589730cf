"""`protlat pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from protlat.cli.options import config_options, device_options
from protlat.config import Config
from protlat.errors import CheckpointError, ConfigError


def _config_class() -> type[Config]:
    from protlat.pipelines.pretrain import PretrainConfig

    return PretrainConfig


@click.command()
@click.argument("shards", required=False, type=click.Path(file_okay=False))
@click.option("-o", "--output", required=True, type=click.Path(file_okay=False), help="Run folder to write.")
@click.option("-m", "--model", help="Preset (tiny, small, base, large), YAML file, or model folder to start from.")
@click.option("--max-steps", type=click.IntRange(min=1), help="Stop after this many steps.")
@click.option("--max-minutes", type=click.FloatRange(min=0, min_open=True), help="Stop after this time of training.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Stop after reading this many tokens.")
@click.option("--epochs", type=click.FloatRange(min=0, min_open=True), help="Passes over the data (default: 1).")
@click.option(
    "--tokens-per-batch", "--toks-per-batch", type=click.IntRange(min=3), help="Most tokens of a batch (default: 4096)."
)
@click.option(
    "--long",
    type=click.Choice(["crop", "pieces", "carry"]),
    help="Sequences above batching.max_length: a random part, all in pieces, or (causal) the state carried on.",
)
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), help="Highest learning rate.")
@click.option("--eval-every", type=click.IntRange(min=1), help="Steps between two evaluations.")
@click.option(
    "--checkpoint-every", type=click.IntRange(min=1), help="Steps between two checkpoints (also every 10 minutes)."
)
@click.option(
    "--deepspeed-config", type=click.Path(exists=True, dir_okay=False), help="DeepSpeed JSON with further keys."
)
@click.option("--seed", type=click.IntRange(min=0), help="Fixes weights, order, crops, masks and dropout.")
@click.option("--resume", is_flag=True, help="Go on with the run in the output folder, with its settings.")
@click.option("--overwrite", is_flag=True, help="Delete the run in the output folder first.")
@click.option("--local_rank", "--local-rank", type=int, hidden=True)
@device_options
@config_options(_config_class)
def pretrain(**options: Any) -> None:
    """Pretrain an encoder on SHARDS: masked residues, or the next one (--set model.causal=true).

    Example: protlat pretrain shards --model tiny --max-steps 300 -o run

    Exit code 130 or 143 after Ctrl-C or SIGTERM: a checkpoint was saved, and --resume goes on from it.
    """
    from protlat.devices import set_threads
    from protlat.pipelines.pretrain import load_config, run
    from protlat.reporting import print_summary
    from protlat.training.describe import CONFIG_FILE

    resume, folder = options["resume"], Path(options["output"])
    config_path = options["config_path"]
    if resume and options["overwrite"]:
        raise ConfigError("--resume and --overwrite exclude each other")
    if resume and config_path is None and (folder / CONFIG_FILE).is_file():
        config_path = folder / CONFIG_FILE
    if resume and config_path is None and options["shards"] is None:
        raise CheckpointError(f"{folder}: there is no run here to resume")
    if options["shards"] is None and config_path is None:
        raise click.UsageError("Missing argument 'SHARDS': the folder that protlat prep made.")
    config = load_config(config_path, options["overrides"], options["model"], **settings_of(options))
    set_threads(options["threads"])
    result = run(config, folder, resume, options["overwrite"])
    if _is_first_process():
        print_summary("pretrain", result.summary)
    if result.stopped_by is not None:
        # Not click's exit, whose code the group does not pass on outside its own standalone mode.
        raise SystemExit(128 + result.stopped_by)


def settings_of(options: dict[str, Any]) -> dict[str, Any]:
    """Settings that the options stand for; None where an option was not given."""
    auto = {name: None if options[name] == "auto" else options[name] for name in ("device", "dtype")}
    return {
        "shards": options["shards"],
        "seed": options["seed"],
        "limits__max_steps": options["max_steps"],
        "limits__max_minutes": options["max_minutes"],
        "limits__max_tokens": options["max_tokens"],
        "limits__epochs": options["epochs"],
        "batching__tokens_per_batch": options["tokens_per_batch"],
        "batching__long": options["long"],
        "optim__lr": options["lr"],
        "evaluation__every_steps": options["eval_every"],
        "checkpoints__every_steps": options["checkpoint_every"],
        "engine__deepspeed_config": options["deepspeed_config"],
        "engine__device": auto["device"],
        "engine__dtype": auto["dtype"],
    }


def _is_first_process() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"
