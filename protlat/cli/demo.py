"""`protlat demo`."""

from __future__ import annotations

import time

import click


@click.command()
@click.option("-o", "--output", default="demo-output", show_default=True, help="Folder to write.")
@click.option("--max-steps", type=click.IntRange(min=1), default=300, show_default=True, help="Training steps.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the run.")
def demo(output: str, max_steps: int, seed: int) -> None:
    """Prepare, pretrain, embed and predict on 384 bundled proteins; draw a loss curve and a map.

    Every command that is run is shown, so that it can be repeated by hand. No network is used.
    """
    from protlat.cli.main import cli
    from protlat.pipelines.demo import DemoConfig, run
    from protlat.reporting import format_seconds

    start_s = time.monotonic()
    config = DemoConfig.load(output=output, max_steps=max_steps, seed=seed)
    made = run(config, lambda words: cli.main(args=words, prog_name="protlat", standalone_mode=False))
    click.echo(f"\ndone in {format_seconds(time.monotonic() - start_s)}; made:")
    for name, path in made.items():
        click.echo(f"  {name:<32} {path}")
