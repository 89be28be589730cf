"""`protlat info`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from protlat.errors import ProtlatError

_BAR_WIDTH = 40


@click.command()
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--data", help="Folder of a task's files. [default: $PROTLAT_DATA, else that of its YAML]")
def info(path: str, as_json: bool, data: str | None) -> None:
    """Say what a shard folder, run, model, embedding file or task is.

    A task is a name (secondary_structure), a YAML, or a labelled FASTA, CSV or TSV file: splits, classes and checks.
    """
    found = describer_of(Path(path), data)(path)
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False, default=str))
    else:
        print_tables(found)


def describer_of(path: Path, data: str | None = None) -> Callable[[str], dict[str, Any]]:
    """The function that describes a path, by what lies there; its module is imported only now.

    Raises
    ------
    ProtlatError
        It does not exist or is nothing that protlat writes.
    """
    from protlat.tasks.names import is_task, nearest_name

    if is_task(path):
        from protlat.tasks.describe import describe_task

        return lambda task: describe_task(task, data)
    if not path.exists():
        near = nearest_name(str(path))
        raise ProtlatError(f"{path}: no such file or folder" + (f"; did you mean the task {near!r}?" if near else ""))
    if path.is_dir():
        if (path / "manifest.json").exists() or (path / ".prep").exists():
            from protlat.data.describe import describe_shards

            return describe_shards
        if (path / "head.json").exists():
            from protlat.models.head_file import describe_fine_tuned

            return describe_fine_tuned
        if (path / "config.yaml").exists() or (path / "checkpoints").exists():
            from protlat.training.describe import describe_run

            return describe_run
        if (path / "config.json").exists():
            from protlat.models import describe_model

            return describe_model
        raise ProtlatError(
            f"{path}: neither shards (manifest.json), a run (config.yaml) nor a model (config.json); protlat wrote none of its files here"
        )
    if path.suffix in (".h5", ".hdf5", ".npz", ".parquet", ".h5ad"):
        from protlat.inference.describe import describe_embeddings

        return describe_embeddings
    raise ProtlatError(
        f"{path}: not a file that info knows; known: shard, run and model folders, .h5 .npz .parquet .h5ad embeddings, tasks (.yaml, labelled .fasta .csv .tsv)"
    )


def print_tables(values: dict[str, Any]) -> None:
    """Print nested values to stdout: single values first, then a table per group."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        # Off a terminal rich assumes 80 columns and folds paths in the middle.
        console = Console(width=160)
    _print_group(console, "", values)


def _print_group(console: Any, title: str, values: dict[str, Any]) -> None:
    from rich.table import Table

    single = {key: value for key, value in values.items() if not isinstance(value, dict) and not _is_histogram(key)}
    if single:
        if title:
            console.print(f"\n[bold]{_escaped(title)}[/bold]")
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for key, value in single.items():
            table.add_row(_escaped(key), _escaped(_shown(value)))
        console.print(table)
    for key, value in values.items():
        name = f"{title} / {key}" if title else str(key)
        if isinstance(value, dict) and value:
            if _is_grid(value):
                _print_grid(console, name, value)
            else:
                _print_group(console, name, value)
        elif _is_histogram(key):
            _print_bars(console, name, value)


def _is_histogram(key: Any) -> bool:
    return str(key).endswith("histogram")


def _is_grid(values: dict[str, Any]) -> bool:
    """Whether every value is a small flat dictionary of numbers with the same keys: rows of one table."""
    rows = list(values.values())
    return (
        len(rows) > 1
        and all(isinstance(row, dict) and list(row) == list(rows[0]) for row in rows)
        and all(isinstance(cell, int | float) for row in rows for cell in row.values())
    )


def _print_grid(console: Any, title: str, values: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in next(iter(values.values())):
        table.add_column(_escaped(name), justify="right")
    for key, row in values.items():
        table.add_row(_escaped(key), *(_shown(cell) for cell in row.values()))
    console.print(f"\n[bold]{_escaped(title)}[/bold]")
    console.print(table)


def _print_bars(console: Any, title: str, pairs: list[Any]) -> None:
    from rich.table import Table

    highest = max((count for _, count in pairs), default=0) or 1
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for label, count in pairs:
        # The smallest count above zero still shows.
        width = max(round(_BAR_WIDTH * count / highest), 1) if count else 0
        table.add_row(_escaped(label), _shown(count), "#" * width)
    console.print(f"\n[bold]{_escaped(title)}[/bold]")
    console.print(table)


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value) or "-"
    return str(value)


def _escaped(value: Any) -> str:
    from rich.markup import escape

    return escape(str(value))
