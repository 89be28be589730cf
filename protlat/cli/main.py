"""The `protlat` command: finds the verb, and turns errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click

from protlat import __version__
from protlat.errors import ConfigError, ProtlatError

VERBS = {
    "prep": (
        "protlat.cli.prep:prep",
        "Read, check, de-duplicate, split and tokenize sequences or documents into shards.",
    ),
    "pretrain": (
        "protlat.cli.pretrain:pretrain",
        "Pretrain an encoder on shards by masked or causal language modelling.",
    ),
    "ablate": ("protlat.cli.ablate:ablate", "Train variants of a model alike, and report what each change is worth."),
    "embed": ("protlat.cli.embed:embed", "Write per-residue and per-sequence vectors."),
    "finetune": ("protlat.cli.finetune:finetune", "Train a head, adapters or a whole model on labels."),
    "predict": ("protlat.cli.predict:predict", "Predict masked residues."),
    "evaluate": ("protlat.cli.evaluate:evaluate", "Score a model on tasks, beside plain baselines, as one report."),
    "generate": ("protlat.cli.generate:generate", "Continue prompts, or write new sequences, with a causal model."),
    "analyze": ("protlat.cli.analyze:analyze", "Ask questions of embeddings: transfer labels from known proteins."),
    "export": ("protlat.cli.export:export", "Write an encoder as an ONNX file."),
    "bench": ("protlat.cli.bench:bench", "Measure this computer: how near models come to its limit."),
    "info": ("protlat.cli.info:info", "Say what a shard folder, run, model or embedding file is."),
    "demo": ("protlat.cli.demo:demo", "Run prep, pretrain, embed and predict on bundled proteins."),
}


class LazyGroup(click.Group):
    """A group that imports a verb's module only when the verb is called, so that ``--help`` is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _, name = VERBS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(f"{error.message} Known: {', '.join(VERBS)}.", ctx) from None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="protlat")
@click.option("--debug", is_flag=True, help="Show the full traceback of an error.")
@click.option("-v", "--verbose", is_flag=True, help="Log every step.")
@click.option("-q", "--quiet", is_flag=True, help="Log warnings only.")
def cli(debug: bool, verbose: bool, quiet: bool) -> None:
    """From raw sequences or documents to a pretrained linear-attention encoder and its answers."""
    level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
    setup_logging(level)


def setup_logging(level: int = logging.INFO) -> None:
    """Log protlat's own messages to stderr; other libraries speak from warnings up."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    own = logging.getLogger("protlat")
    own.setLevel(level)
    if not own.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        own.addHandler(handler)
        own.propagate = False


def main(args: list[str] | None = None) -> Any:
    """Entry point of the `protlat` script; exit code 0 done, 1 input or run error, 2 usage."""
    arguments = sys.argv[1:] if args is None else args
    try:
        with _file_faults_of_threads_untold():
            cli.main(args=arguments, prog_name="protlat", standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("stopped", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ProtlatError as error:
        if "--debug" in arguments:
            raise
        click.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except BrokenPipeError:
        # The reader of our output (head, less) went away: nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        # A disk that fills up or a folder that may not be written shows in any library, at any time.
        if "--debug" in arguments:
            raise
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    sys.exit(0)


@contextlib.contextmanager
def _file_faults_of_threads_untold() -> Iterator[None]:
    """Leave out the traceback of a file fault in a helper thread: whoever waits for that thread reports it."""
    before = threading.excepthook

    def tell(fault: threading.ExceptHookArgs) -> None:
        if not issubclass(fault.exc_type, OSError):
            before(fault)

    threading.excepthook = tell
    try:
        yield
    finally:
        threading.excepthook = before


if __name__ == "__main__":
    main()
