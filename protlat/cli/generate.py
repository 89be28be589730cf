"""`protlat generate`."""

from __future__ import annotations

from typing import Any

import click

from protlat.cli.options import config_options, device_options
from protlat.config import Config


def _config_class() -> type[Config]:
    from protlat.pipelines.generate import GenerateConfig

    return GenerateConfig


@click.command(no_args_is_help=True)
@click.argument("prompts", nargs=-1, metavar="[PROMPT]...")
@click.option(
    "-m", "--model", type=click.Path(exists=True, file_okay=False), help="Causal model folder, or its run folder."
)
@click.option(
    "-o", "--output", metavar="FILE", help="File to write: .fasta, .txt or .jsonl. [default: standard output]"
)
@click.option(
    "--prompts", "prompt_file", metavar="FILE", help="Prompts from a FASTA or text file ('-': standard input)."
)
@click.option(
    "--document",
    type=click.Choice(["line", "file"]),
    help="A prompt in a text file: each line, or all. [default: line]",
)
@click.option("--max-new-tokens", type=click.IntRange(min=1), help="Most tokens added to a prompt. [default: 256]")
@click.option("--num-samples", type=click.IntRange(min=1), help="Sequences for every prompt. [default: 1]")
@click.option("--temperature", type=click.FloatRange(min=0), help="0: always the likeliest token. [default: 1]")
@click.option("--top-k", type=click.IntRange(min=1), help="Choose among the k likeliest tokens only.")
@click.option(
    "--top-p", type=click.FloatRange(0, 1, min_open=True), help="Choose among the likeliest tokens that reach p in sum."
)
@click.option(
    "--repetition-penalty",
    type=click.FloatRange(min=0, min_open=True),
    help="Above 1: less of what stands there already.",
)
@click.option("--stop", multiple=True, metavar="TEXT", help="End a sequence at TEXT too; repeatable.")
@click.option("--batch-size", type=click.IntRange(min=1), help="Sequences side by side. [default: 64]")
@click.option("--seed", type=click.IntRange(min=0), help="Fixes what is drawn. [default: 0]")
@click.option("--format", "format_name", type=click.Choice(["fasta", "text", "jsonl"]), help="[default: by the ending]")
@click.option("--overwrite", is_flag=True, default=None, help="Replace the output.")
@device_options
@config_options(_config_class)
def generate(prompts: tuple[str, ...], config_path: str | None, overrides: tuple[str, ...], **given: Any) -> None:
    """Continue every PROMPT with a causal model, or write sequences from nothing when there is none.

    \b
    protlat generate -m run --num-samples 10 -o new.fasta
    protlat generate MKTAYIAKQR MSHHWGYG -m run --temperature 0.8 --top-p 0.95 -o more.fasta
    protlat generate -m books --prompts start.txt --document file --max-new-tokens 2000 -o story.txt

    A single '-' as PROMPT reads prompts from standard input, one a line.
    """
    from protlat.pipelines.generate import GenerateConfig, run
    from protlat.reporting import print_summary

    values = generate_values(prompts, given)
    print_summary("generate", run(GenerateConfig.load(config_path, overrides, **values)))


_SAMPLING = (
    "max_new_tokens", "num_samples", "temperature", "top_k", "top_p", "repetition_penalty", "stop", "batch_size", "seed",
)  # fmt: skip


def generate_values(prompts: tuple[str, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Config values of the options that were given, by dotted key; None for the others."""
    values = {f"generation__{name}" if name in _SAMPLING else name: value for name, value in given.items()}
    values["format"] = values.pop("format_name")
    values["prompts"] = prompts
    if prompts == ("-",):
        values |= {"prompts": (), "prompt_file": "-"}
    # Shared options carry their defaults as values: those must not hide what a config file says.
    for option in ("device", "dtype"):
        if values[option] == "auto":
            values[option] = None
    return {key: (list(value) or None) if isinstance(value, tuple) else value for key, value in values.items()}
