"""One residue of a structure: its letter, which of its alternate atoms count, where its C-beta would be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from Bio.Data.PDBData import nucleic_letters_3to1_extended, protein_letters_3to1, protein_letters_3to1_extended

# Residues of the genetic code, and what is not known for sure, that Biopython's table of the 20 leaves out.
_FURTHER_LETTERS = {"SEC": "U", "PYL": "O", "ASX": "B", "GLX": "Z", "UNK": "X"}
_STANDARD = {name.strip(): letter for name, letter in protein_letters_3to1.items()} | _FURTHER_LETTERS
_EXTENDED = {name.strip(): letter for name, letter in protein_letters_3to1_extended.items()}
_NUCLEIC = {name.strip() for name in nucleic_letters_3to1_extended}
BACKBONE = ("N", "CA", "C")


def letter_of(name: str, parents: Mapping[str, str]) -> str | None:
    """One-letter code of a residue; a modified one has its parent's. None: no amino acid.

    Parameters
    ----------
    name : str
        Component name, such as ``MSE``.
    parents : mapping of str to str
        Parents that the file itself names; Biopython's table answers for the rest.
    """
    name = name.strip().upper()
    if name in _STANDARD:
        return _STANDARD[name]
    parent = parents.get(name, "").strip().upper()
    return _STANDARD.get(parent) or _EXTENDED.get(name)


def is_modified(name: str) -> bool:
    """Whether a component is none of the residues of the genetic code."""
    return name.strip().upper() not in _STANDARD


def is_nucleic(name: str) -> bool:
    """Whether a component is a nucleotide."""
    return name.strip().upper() in _NUCLEIC and name.strip().upper() not in _EXTENDED


def chosen_residue(residue: Any, notes: Counter[str]) -> Any:
    """The residue itself; where the crystal shows two kinds at one place, the one of highest occupancy, ties by letter."""
    if residue.is_disordered() != 2:
        return residue
    notes["places with two kinds of residue"] += 1
    kinds = residue.disordered_get_list()

    def rank(kind: Any) -> tuple[float, str]:
        atoms = [atom for atom in kind.get_unpacked_list() if atom.name in BACKBONE] or kind.get_unpacked_list()
        return -float(np.mean([_occupancy(atom) for atom in atoms])), min(atom.get_altloc() for atom in atoms)

    return min(kinds, key=rank)


def chosen_atoms(residue: Any, notes: Counter[str]) -> dict[str, np.ndarray]:
    """Coordinates of N, CA, C and CB by name, all of one alternate location where the residue has several.

    That of the highest mean occupancy over these atoms is taken, ties by letter; atoms without alternatives belong to all.

    Returns
    -------
    dict of str to numpy.ndarray, shape (3,), float64
    """
    atoms = {name: residue[name] for name in (*BACKBONE, "CB") if residue.has_id(name)}
    places: dict[str, list[float]] = {}
    for atom in atoms.values():
        if atom.is_disordered():
            for alternative in atom.disordered_get_list():
                places.setdefault(alternative.get_altloc(), []).append(_occupancy(alternative))
    if len(places) > 1:
        notes["residues with alternate locations"] += 1
    order = sorted(places, key=lambda letter: (-float(np.mean(places[letter])), letter))
    found = {}
    for name, atom in atoms.items():
        if atom.is_disordered():
            here = {alternative.get_altloc(): alternative for alternative in atom.disordered_get_list()}
            atom = here[next(letter for letter in order if letter in here)]
        point = np.asarray(atom.coord, dtype=np.float64)
        if np.isfinite(point).all():
            found[name] = point
    return found


def virtual_cb(n: np.ndarray, ca: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Where the C-beta of an L-residue stands, from its backbone; all shape (3,).

    Notes
    -----
    CB = CA - 0.58273431 b x c + 0.56802827 b - 0.54067466 c, with b = CA - N and c = C - CA: ideal tetrahedral geometry.

    References
    ----------
    Dauparas et al. 2022, "Robust deep learning-based protein sequence design using ProteinMPNN", released code.
    """
    b, d = ca - n, c - ca
    point: np.ndarray = -0.58273431 * np.cross(b, d) + 0.56802827 * b - 0.54067466 * d + ca
    return point


def _occupancy(atom: Any) -> float:
    # Files without the column say nothing about which alternative is the better one.
    occupancy = atom.get_occupancy()
    return 0.0 if occupancy is None else float(occupancy)
