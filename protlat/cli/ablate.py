"""`protlat ablate`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("config", type=click.Path(exists=True, dir_okay=False))
@click.argument("shards", required=False, type=click.Path(file_okay=False))
@click.option("-o", "--output", required=True, type=click.Path(file_okay=False), help="Folder of the ablation.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at a time.")
@click.option(
    "--threads", type=click.IntRange(min=1), help="CPU threads of each run (default: all, divided by --jobs)."
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one setting; repeatable.")
def ablate(
    config: str, shards: str | None, output: str, jobs: int, threads: int | None, overrides: tuple[str, ...]
) -> None:
    """Train the model variants of CONFIG on SHARDS alike, and report what each change is worth.

    Same data order, tokens, parameters and seeds. A stopped ablation goes on when the command is given again.

    Example: protlat ablate configs/ablate/proteins.yaml shards -o ablation
    """
    from protlat.devices import set_threads
    from protlat.pipelines.ablate import run
    from protlat.pipelines.ablate_config import load_ablation
    from protlat.reporting import print_summary

    settings = load_ablation(config, shards, overrides)
    set_threads(threads)
    account = run(settings, Path(output), jobs, threads)
    print_summary("ablate", account)
    if account["failed"]:
        raise SystemExit(1)
