"""Sequences to test tasks with, and a task of one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from protlat.alphabet import PROTEIN
from protlat.tasks.config import TaskConfig
from protlat.tasks.load import LoadedTask, read_task

FILES = Path(__file__).parent.parent / "data_files" / "tasks"
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"


def one_file(
    folder: Path, text: str | bytes, kind: str = "fasta", name: str = "data", neighbours: bool = False, **settings: Any
) -> LoadedTask:
    """Write a file and read it as a task of one source; nothing is cut from train unless asked for."""
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    source = {"kind": kind, "path": name, **settings.pop("source", {})}
    return task(folder, [source], neighbours, **settings)


def task(folder: Path, sources: list[dict[str, Any]], neighbours: bool = False, **settings: Any) -> LoadedTask:
    """Read a task of some sources."""
    values = {"name": "task", "type": "sequence_class", "valid": None, "sources": sources, **settings}
    return read_task(TaskConfig.parse(values), folder, neighbours=neighbours)


def protein(rng: np.random.Generator, length: int) -> str:
    return "".join(rng.choice(list(RESIDUES), length))


def mutant(rng: np.random.Generator, sequence: str, n_changes: int) -> str:
    letters = list(sequence)
    for place in rng.choice(len(letters), n_changes, replace=False):
        letters[place] = str(rng.choice([letter for letter in RESIDUES if letter != letters[place]]))
    return "".join(letters)


def tokens(sequence: str) -> np.ndarray:
    return PROTEIN.encode(sequence)


def text_of(ids: np.ndarray) -> str:
    return PROTEIN.decode(ids)


def letters_of(loaded: LoadedTask, split: str, row: int) -> str:
    """Labels of one protein as the first letters of their classes, '-' where a label does not count."""
    codes = loaded.data.splits[split].labels[row]
    assert isinstance(codes, np.ndarray)
    return "".join("-" if code < 0 else loaded.data.classes[code][0] for code in codes)
