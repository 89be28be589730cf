"""`protlat prep`."""

from __future__ import annotations

from typing import Any

import click

from protlat.cli.options import config_options
from protlat.config import Config


def _config_class() -> type[Config]:
    from protlat.data_prep.config import PrepConfig

    return PrepConfig


class PrepCommand(click.Command):
    """`prep` itself, whose first argument may also be a subcommand: ``prep structures``."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["structures"]:
            from protlat.cli.prep_structures import structures

            return structures.make_context(f"{info_name} structures", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


# fmt: off: one option a line reads best
@click.command(cls=PrepCommand)
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@click.option(
    "-i", "--input", "more_inputs", multiple=True, metavar="FILE", help="One more input; same as an argument."
)
@click.option("-o", "--output", metavar="FOLDER", help="Shard folder to make.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["auto", "fasta", "swissprot", "genbank", "embl", "text", "jsonl"]),
    help="Input format (default: by content, and by name for .txt .md .jsonl).",
)
@click.option(
    "--alphabet",
    metavar="NAME|FILE",
    help="protein, bytes or a tokenizer.json (default: protein, bytes for documents).",
)
@click.option(
    "--document", type=click.Choice(["file", "line"]), help="What one document is in text files (default: file)."
)
@click.option("--field", metavar="KEY", help="Key of the text in .jsonl files.")
@click.option("--id-field", metavar="KEY", help="Key of the identifier in .jsonl files.")
@click.option(
    "--unknown",
    type=click.Choice(["map", "keep", "error", "skip"]),
    help="U Z O B J: to X, kept, stop, or leave the record out.",
)
@click.option(
    "--gaps", type=click.Choice(["error", "strip", "skip"]), help="'-' and '.': stop, remove, or leave the record out."
)
@click.option(
    "--stops",
    type=click.Choice(["map", "error", "skip"]),
    help="'*' inside a sequence: to X, stop, or leave the record out.",
)
@click.option("--min-length", type=int, metavar="N", help="Leave out what is shorter.")
@click.option("--max-length", type=int, metavar="N", help="See --long for what is longer (default: no limit).")
@click.option(
    "--long",
    type=click.Choice(["skip", "window", "cut", "error"]),
    help="What happens above --max-length (default: skip).",
)
@click.option(
    "--fixed-length", type=int, metavar="L", help="Make every row L tokens: window long records, pad short ones."
)
@click.option("--overlap", type=int, metavar="K", help="Tokens that neighbouring windows share.")
@click.option("--duplicates", type=click.Choice(["drop", "keep"]), help="Equal sequences (default: drop).")
@click.option(
    "--duplicate-ids", type=click.Choice(["keep", "skip", "error"]), help="Equal identifiers (default: keep, apart)."
)
@click.option("--tag-pattern", metavar="REGEX", help="Its first group, on the identifier, is the source tag.")
@click.option("--exclude-tag", "exclude_tags", multiple=True, metavar="TAG", help="Leave a tag out; repeatable.")
@click.option("--valid", multiple=True, metavar="FILE", help="File(s) of the validation split.")
@click.option("--test", multiple=True, metavar="FILE", help="File(s) of the test split.")
@click.option("--valid-fraction", type=float, metavar="F", help="Share of clusters for validation.")
@click.option("--test-fraction", type=float, metavar="F", help="Share of clusters for test.")
@click.option("--clusters", metavar="FILE", help="Table of clusters: columns id and cluster, or MMseqs2's own.")
@click.option(
    "--cluster-method",
    type=click.Choice(["auto", "table", "mmseqs", "minhash", "none"]),
    help="Where clusters come from.",
)
@click.option("--seed", type=int, help="Salt of the split by hash (default: 0).")
@click.option(
    "--workers", type=int, metavar="N", help="Processes (default: by size of the input); the result is the same."
)
@click.option("--overwrite", is_flag=True, help="Replace shards or unfinished work in FOLDER.")
@config_options(_config_class)
def prep(
    inputs: tuple[str, ...],
    more_inputs: tuple[str, ...],
    config_path: str | None,
    overrides: tuple[str, ...],
    overwrite: bool,
    format_: str | None,
    **options: Any,
) -> None:
    """Read, check, de-duplicate, split and tokenize sequences or documents into shards.

    INPUT is any number of files, quoted patterns, or '-' for standard input: FASTA (plain, .gz, .bz2, .xz, .zst), Swiss-Prot .dat,
    GenBank or EMBL with /translation, .txt, .md or .jsonl. A run that was stopped goes on when the same command is given again.

    \b
    protlat prep proteins.fasta.gz --valid-fraction 0.02 -o shards
    protlat prep train.fa --valid valid.fa -o shards

    Structures (PDB, mmCIF) have a command of their own: protlat prep structures --help
    """
    from protlat.data_prep.config import PrepConfig
    from protlat.data_prep.flow import run

    values = settings_of(options) | {"inputs": [*inputs, *more_inputs] or None, "format": format_}
    run(PrepConfig.load(config_path, overrides, **values), overwrite)


_POLICY = ("unknown", "gaps", "stops")
_SPLIT = ("valid", "test", "valid_fraction", "test_fraction", "clusters", "cluster_method", "seed")


def settings_of(options: dict[str, Any]) -> dict[str, Any]:
    """Options under the keys of `PrepConfig`; what was not given is None, so that it does not hide the file."""
    values = {}
    for name, value in options.items():
        key = f"policy__{name}" if name in _POLICY else f"split__{name}" if name in _SPLIT else name
        values[key] = (list(value) or None) if isinstance(value, tuple) else value
    return values
