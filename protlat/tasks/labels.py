"""Labels as written -> names of classes, codes and numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from protlat.errors import SequenceError
from protlat.tasks.config import TaskConfig
from protlat.tasks.data import MISSING
from protlat.tasks.readers.base import RawLabel, SourceConfig

_PARTS = re.compile(r"[\s,;]+")


class Translator:
    """From labels as one file writes them to the names of the task's classes.

    Parameters
    ----------
    task : TaskConfig
    source : SourceConfig
        Its own map comes first, the task's map is applied to the result.
    left_out : Counter
        Receives, by what was written, the labels that the maps leave out.
    """

    def __init__(self, task: TaskConfig, source: SourceConfig, left_out: Counter[str]) -> None:
        self._first, self._second = source.label_map, task.label_map
        self._missing = frozenset(task.missing)
        self._known = frozenset(task.classes)
        self._classes = task.classes
        self.left_out = left_out
        self.residue_codes: dict[str, int] = {}

    def is_left_out(self, text: str) -> bool:
        """Whether the maps say null for it."""
        name = self._first.get(text, text)
        return name is None or (name in self._second and self._second[name] is None)

    def __call__(self, text: str, where: str) -> str | None:
        """Class name of a label; None where it is missing or left out.

        Raises
        ------
        SequenceError
            The task lists its classes and this is none of them.
        """
        if self.is_left_out(text):
            self.left_out[text] += 1
            return None
        name = self._first.get(text, text)
        assert name is not None
        if name in self._missing and name not in self._second and name not in self._known:
            return None
        name = self._second.get(name, name)
        assert name is not None
        if self._known and name not in self._known:
            shown = repr(text) if name == text else f"{text!r} ({name})"
            raise SequenceError(
                f"{where}: unknown label {shown}; known: {', '.join(map(repr, self._classes))} (label_map gives others a "
                "class or, with null, leaves them out)"
            )
        return name


class ResidueEncoder:
    """Codes of residue labels, by a table of the 256 characters where each label is one.

    Codes number the classes in the order in which they first occur, over all files of a task; `renumbered` brings them
    into the final order.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._codes: dict[str, int] = {}

    def encode(self, symbols: str | Sequence[str], translate: Translator, where: str) -> np.ndarray:
        """Codes, shape (n,), int64, `MISSING` where a label is missing or left out.

        Raises
        ------
        SequenceError
            An unknown label; names its position.
        """
        if isinstance(symbols, str) and symbols.isascii():
            raw = np.frombuffer(symbols.encode("ascii"), dtype=np.uint8)
            counts = np.bincount(raw, minlength=256)
            lookup = np.full(256, MISSING, dtype=np.int64)
            for byte in np.flatnonzero(counts).tolist():
                lookup[byte] = self._code(chr(byte), int(counts[byte]), symbols, translate, where)
            return lookup[raw]
        found = {
            symbol: self._code(symbol, count, symbols, translate, where) for symbol, count in Counter(symbols).items()
        }
        return np.fromiter((found[symbol] for symbol in symbols), dtype=np.int64, count=len(symbols))

    def _code(self, symbol: str, count: int, symbols: str | Sequence[str], translate: Translator, where: str) -> int:
        known = translate.residue_codes
        if symbol not in known:
            name = None
            if not translate.is_left_out(symbol):
                name = translate(symbol, f"{where}: residue {symbols.index(symbol) + 1}")
            if name is not None and name not in self._codes:
                self._codes[name] = len(self.names)
                self.names.append(name)
            known[symbol] = MISSING if name is None else self._codes[name]
        if known[symbol] == MISSING and translate.is_left_out(symbol):
            translate.left_out[symbol] += count
        return known[symbol]


def renumbered(codes: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Codes in another order of the classes: `order` holds the new code of each old one; `MISSING` stays."""
    if not len(order):
        return codes  # no class at all: every label is missing
    return np.where(codes >= 0, order[np.maximum(codes, 0)], MISSING)


def number_of(text: str, task: TaskConfig, where: str) -> float:
    """A value; nan where it is missing.

    Raises
    ------
    SequenceError
        Not a number, infinite, or outside the task's range.
    """
    if text in task.missing:
        return float("nan")
    try:
        value = float(text)
    except ValueError:
        raise SequenceError(f"{where}: label {text!r} is not a number") from None
    if np.isinf(value):
        raise SequenceError(f"{where}: label {text!r} is not finite")
    if task.value_range is not None and not np.isnan(value):
        low, high = task.value_range
        if not low <= value <= high:
            raise SequenceError(f"{where}: label {value:g} is out of range; allowed: {low:g} to {high:g}")
    return value


def residue_numbers(label: RawLabel, task: TaskConfig, where: str) -> np.ndarray:
    """Values of a protein's residues, shape (n,), float32; they stand parted by the separator, blanks or commas.

    Raises
    ------
    SequenceError
        One of them is not a number or out of range; names its position.
    """
    if isinstance(label, str):
        parts: Sequence[str] = label.split(task.separator) if task.separator in label else _PARTS.split(label.strip())
    else:
        assert isinstance(label, list | tuple)
        parts = label
    values = [number_of(part.strip(), task, f"{where}: residue {place}") for place, part in enumerate(parts, start=1)]
    return np.asarray(values, dtype=np.float32)


def class_order(names: Iterable[str]) -> list[str]:
    """Names of classes sorted: numbers by value, others by letters."""
    found = list(names)
    if all(re.fullmatch(r"-?\d+", name) for name in found):
        return sorted(found, key=int)
    return sorted(found)
