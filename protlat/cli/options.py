"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from protlat.config import Config
from protlat.files import write_text

F = TypeVar("F", bound=Callable[..., Any])


def config_options(config_class: Callable[[], type[Config]]) -> Callable[[F], F]:
    """``--config``, ``--set`` and ``--write-config`` for a verb whose settings are `config_class()`.

    The class is passed as a function, so that importing the command does not import what the class needs.
    """

    def write_default(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is None or ctx.resilient_parsing:
            return
        text = config_class()().to_commented_yaml()
        if value == "-":
            click.echo(text, nl=False)
        else:
            write_text(value, text)
            click.echo(f"wrote {value}: edit it, then pass it with --config", err=True)
        ctx.exit(0)

    def decorate(function: F) -> F:
        function = click.option(
            "--write-config", metavar="FILE", callback=write_default, expose_value=False, is_eager=True,
            help="Write the defaults as commented YAML to FILE ('-': standard output) and stop.",
        )(function)  # fmt: skip
        function = click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="KEY=VALUE",
            help="Override one setting, for example optim.lr=1e-3.",
        )(function)
        return click.option(
            "--config", "config_path", type=click.Path(exists=True, dir_okay=False), help="YAML file of settings."
        )(function)

    return decorate


def sequence_options(function: F) -> F:
    """``--toks-per-batch``, ``--unknown``, ``--gaps``, ``--stops`` and ``--split`` of the verbs that read sequences."""
    for option in reversed(
        (
            click.option(
                "--toks-per-batch",
                type=click.IntRange(min=1),
                help="Tokens of one forward pass. [default: 8192 on a CPU, 65536 on a GPU]",
            ),
            click.option(
                "--unknown",
                type=click.Choice(["map", "keep", "error", "skip"]),
                help="U Z O B J: map to X, keep, stop, or skip the record. [default: map]",
            ),
            click.option(
                "--gaps",
                type=click.Choice(["error", "strip", "skip"]),
                help="'-' and '.' in sequences. [default: error]",
            ),
            click.option(
                "--stops", type=click.Choice(["map", "error", "skip"]), help="'*' inside sequences. [default: map]"
            ),
            click.option("--split", help="Split of shard folders. [default: all]"),
        )
    ):
        function = option(function)
    return function


def device_options(function: F) -> F:
    """``--device``, ``--dtype`` and ``--threads``."""
    function = click.option("--threads", type=click.IntRange(min=1), help="CPU threads to use (default: all).")(
        function
    )
    function = click.option(
        "--dtype", type=click.Choice(["auto", "float32", "bfloat16"]), default="auto", show_default=True,
        help="Working precision; auto: bfloat16 where the processor multiplies it natively, else float32.",
    )(function)  # fmt: skip
    return click.option(
        "--device",
        default="auto",
        show_default=True,
        help="auto, cpu, cuda or cuda:N; auto takes a GPU when there is one.",
    )(function)
