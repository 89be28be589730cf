"""Chains with coordinates as lines of JSON: the one definition of that file, for those who write it and who read it.

A line holds ``id``, ``seq`` (observed residues only), ``ca`` and ``cb`` (a [x, y, z] in angstrom, or null, per residue; ``cb``
is a virtual C-beta where the atom is missing, glycine included), ``resnum`` (author's numbers as text, insertion codes
included; empty if unknown), ``breaks`` (i such that unobserved residues follow residue i), ``source``, and optionally
``index`` (number of each residue along the chain, unobserved ones counted) and ``cluster``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from protlat.errors import SequenceError

# Neighbours along a chain stand 3.8 angstrom apart (2.9 across a cis bond).
BREAK_ANGSTROM = 4.5
_DECIMALS = 3


@dataclass(frozen=True)
class Chain:
    """One chain.

    Attributes
    ----------
    identifier : str
    residues : str
        One letter per observed residue.
    ca, cb : numpy.ndarray, shape (L, 3), float32
        Angstrom; nan where unknown.
    numbers : tuple of str
        Author's residue numbers with insertion codes; empty if unknown.
    index : numpy.ndarray, shape (L,), int64
        Number along the chain, ascending, unobserved residues counted.
    source : str
        File, and place in it.
    cluster : int or None
        Which similar chains it stands with.
    """

    identifier: str
    residues: str
    ca: np.ndarray
    cb: np.ndarray
    numbers: tuple[str, ...]
    index: np.ndarray
    source: str = ""
    cluster: int | None = None

    @property
    def contact_atoms(self) -> np.ndarray:
        """C-beta, C-alpha for glycine, (L, 3): what the distance of a contact is measured between."""
        is_glycine = np.frombuffer(self.residues.encode("ascii"), dtype=np.uint8) == ord("G")
        return np.where(is_glycine[:, None], self.ca, self.cb).astype(np.float32)

    def to_line(self) -> str:
        """JSON without a line end."""
        values: dict[str, Any] = {
            "id": self.identifier,
            "seq": self.residues,
            "ca": _points(self.ca),
            "cb": _points(self.cb),
            "resnum": list(self.numbers),
            "index": self.index.tolist(),
            "breaks": np.flatnonzero(np.diff(self.index) > 1).tolist(),
        }
        if self.cluster is not None:
            values["cluster"] = self.cluster
        return json.dumps({**values, "source": self.source}, separators=(",", ":"), ensure_ascii=False)


def read_line(text: str | bytes, where: str) -> Chain:
    """A chain from its line.

    Parameters
    ----------
    text : str or bytes
    where : str
        ``FILE:LINE``, for messages.

    Raises
    ------
    SequenceError
        Not JSON, a key is missing or of another form, or lengths differ.
    """
    try:
        values = json.loads(text)
    except (ValueError, UnicodeDecodeError) as error:
        raise SequenceError(f"{where}: not a line of JSON: {error}") from None
    if not isinstance(values, dict):
        raise SequenceError(f"{where}: expected a JSON object with id, seq, ca, cb; found {type(values).__name__}")
    for key in ("id", "seq"):
        if not isinstance(values.get(key), str) or not values[key]:
            raise SequenceError(f"{where}: key {key!r}: expected a text, found {values.get(key)!r}")
    name, residues = values["id"], values["seq"]
    if not residues.isascii():
        raise SequenceError(f"{where}: {name}: key 'seq': holds a character beyond ASCII")
    where = f"{where}: {name}"
    numbers = values.get("resnum") or []
    breaks = values.get("breaks") or []
    if not isinstance(numbers, list) or (numbers and len(numbers) != len(residues)):
        raise SequenceError(f"{where}: key 'resnum': expected {len(residues)} numbers, one per residue, or none")
    numbers = [str(number) for number in numbers]
    if not isinstance(breaks, list) or not all(isinstance(i, int) and 0 <= i < len(residues) for i in breaks):
        raise SequenceError(f"{where}: key 'breaks': expected places from 0 to {len(residues) - 1}")
    index = values.get("index")
    cluster = values.get("cluster")
    return Chain(
        name,
        residues,
        _coordinates(values, "ca", len(residues), where),
        _coordinates(values, "cb", len(residues), where),
        tuple(numbers),
        index_of_numbers(numbers, breaks, len(residues)) if index is None else _given_index(index, residues, where),
        str(values.get("source", "")),
        cluster if isinstance(cluster, int) else None,
    )


def index_of_numbers(numbers: Sequence[str], breaks: Sequence[int], n_residues: int) -> np.ndarray:
    """Number of each residue along the chain, from author's numbers and the places of breaks.

    Author's numbers jump without a gap (antibody and protease numberings) and stand still at insertion codes, so they
    are believed at breaks only: there they say how many residues are missing; where they do not, one is taken to be.

    Returns
    -------
    numpy.ndarray, shape (n_residues,), int64
        From 0.
    """
    step = np.ones(n_residues, dtype=np.int64)
    step[0] = 0
    for place in breaks:
        if place + 1 < n_residues:
            ends = [_plain_number(numbers[i]) for i in (place, place + 1)] if numbers else [None, None]
            jump = 2 if ends[0] is None or ends[1] is None else ends[1] - ends[0]
            step[place + 1] = max(jump, 2)
    return np.cumsum(step)


def _plain_number(text: str) -> int | None:
    """The integer of ``52`` or ``52A``; None where there is none."""
    digits = text.strip().rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    return int(digits) if digits.removeprefix("-").isdecimal() else None


def _given_index(values: Any, residues: str, where: str) -> np.ndarray:
    if not isinstance(values, list) or not all(type(value) is int for value in values) or len(values) != len(residues):
        raise SequenceError(f"{where}: key 'index': expected {len(residues)} whole numbers, one per residue")
    index = np.asarray(values, dtype=np.int64)
    if (np.diff(index) < 1).any():
        place = int(np.flatnonzero(np.diff(index) < 1)[0])
        raise SequenceError(
            f"{where}: key 'index': must ascend, but {values[place]} is followed by {values[place + 1]}"
        )
    return index


def _coordinates(values: dict[str, Any], key: str, n_residues: int, where: str) -> np.ndarray:
    points = values.get(key)
    if not isinstance(points, list) or len(points) != n_residues:
        found = f"{len(points)}" if isinstance(points, list) else "none"
        raise SequenceError(f"{where}: key {key!r}: expected {n_residues} points, one per residue, found {found}")
    unknown = [None, None, None]
    try:
        # None becomes nan.
        found_points = np.array([unknown if point is None else point for point in points], dtype=np.float32)
    except (TypeError, ValueError):
        found_points = np.zeros(0, dtype=np.float32)
    if found_points.shape != (n_residues, 3):
        raise SequenceError(f"{where}: key {key!r}: every point must be [x, y, z] or null")
    return found_points


def _points(xyz: np.ndarray) -> list[list[float] | None]:
    known = np.isfinite(xyz).all(1)
    rounded = np.round(xyz.astype(np.float64), _DECIMALS).tolist()
    return [point if is_known else None for point, is_known in zip(rounded, known, strict=True)]
