"""Names of the tasks that come with the package, and what else can be a task."""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path

# Suffixes of labelled files that need no YAML, before that of a compression.
TABLES = (".csv", ".tsv", ".tab", ".parquet")
FASTAS = (".fasta", ".fa", ".faa", ".fas")
CHAINS = (".jsonl",)
COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
YAMLS = (".yaml", ".yml")


def task_names() -> list[str]:
    """Names of the tasks that come with the package."""
    folder = resources.files("protlat.configs").joinpath("task")
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def plain_suffix(path: str | Path) -> str:
    """Suffix of a file's name before that of its compression, in small letters."""
    name = Path(path).name.lower()
    for compression in COMPRESSIONS:
        name = name.removesuffix(compression)
    return Path(name).suffix


def is_labelled_file(path: str | Path) -> bool:
    """Whether a file's name is that of a format that can hold labels."""
    return plain_suffix(path) in (*TABLES, *FASTAS, *CHAINS)


def nearest_name(text: str) -> str:
    """The task whose name is most like a text, "" where none is."""
    return next(iter(difflib.get_close_matches(text, task_names(), n=1, cutoff=0.6)), "")


def is_task(path: str | Path) -> bool:
    """Whether `protlat info` takes this for a task: a known name, a YAML, a FASTA, CSV or TSV file (Parquet: embeddings)."""
    suffix = plain_suffix(path)
    if str(path) in task_names() and not Path(path).exists():
        return True
    return suffix in YAMLS or (is_labelled_file(path) and suffix != ".parquet")
