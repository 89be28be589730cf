"""From a chain of a structure to sequence, coordinates and places along the chain."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from protlat.data.chains import BREAK_ANGSTROM, Chain, index_of_numbers
from protlat.data.structure_index import index_from_places, index_from_seqres
from protlat.data.structure_parse import Number, ParsedStructure
from protlat.data.structure_residues import chosen_atoms, chosen_residue, is_modified, is_nucleic, letter_of, virtual_cb

# A peptide bond is 1.33 angstrom long; coordinates of low resolution stray.
_BOND_ANGSTROM = 2.0


class ObservedResidue(NamedTuple):
    """An amino acid of the chain that was seen."""

    letter: str
    name: str
    number: Number
    atoms: dict[str, np.ndarray]


def chain_of(parsed: ParsedStructure, chain: Any, identifier: str, source: str, notes: Counter[str]) -> Chain | None:
    """One chain of a model; None where it holds no protein.

    Parameters
    ----------
    parsed : ParsedStructure
    chain : Bio.PDB.Chain.Chain
    identifier, source : str
        Written to the result.
    notes : Counter
        Receives what was mapped, chosen, made up or left out, by name.
    """
    own: Counter[str] = Counter()
    residues = _observed(parsed, chain, own)
    if not residues:
        # Waters and ligands are counted with the chain they stand in, nucleotides as a chain.
        n_nucleic = own.pop("nucleotides left out", 0)
        notes["nucleic chains left out" if n_nucleic else "chains without protein left out"] += 1
        notes.update(own)
        return None
    ca, cb = _coordinates(residues, own)
    numbers = tuple(f"{number}{code}" for (number, code) in (residue.number for residue in residues))
    letters = "".join(residue.letter for residue in residues)
    index = _index(parsed, chain.id, letters, residues, numbers, ca, own)
    for residue in residues:
        if is_modified(residue.name):
            own[f"modified residues mapped: {residue.name} to {residue.letter}"] += 1
        if residue.number[1]:
            own["residues with insertion codes"] += 1
    own["unobserved residues counted"] += int((np.diff(index) - 1).sum())
    notes.update(own)
    return Chain(identifier, letters, ca, cb, numbers, index, source)


def _observed(parsed: ParsedStructure, chain: Any, notes: Counter[str]) -> list[ObservedResidue]:
    """Amino acids of the polymer, in the order of the file."""
    known_places = parsed.places.get(chain.id, {})
    found: list[ObservedResidue] = []
    is_sure: list[bool] = []
    for place in chain:
        hetero, number, code = place.id
        if hetero == "W":
            notes["waters left out"] += 1
            continue
        residue = chosen_residue(place, notes)
        letter = letter_of(residue.resname, parsed.parents)
        if letter is None:
            notes["nucleotides left out" if is_nucleic(residue.resname) else "ligands left out"] += 1
            continue
        key: Number = (number, code.strip())
        found.append(ObservedResidue(letter, residue.resname.strip(), key, chosen_atoms(residue, notes)))
        is_sure.append(hetero == " " or (key in known_places and not _repeats(key, found)))
    kept = []
    for i, residue in enumerate(found):
        # Amino acids stand among the ligands too: what is no plain residue must be bound to a neighbour.
        if (
            is_sure[i]
            or (i and _bound(found[i - 1], residue))
            or (i + 1 < len(found) and _bound(residue, found[i + 1]))
        ):
            kept.append(residue)
        else:
            notes["ligands left out"] += 1
    return kept


def _repeats(key: Number, found: list[ObservedResidue]) -> bool:
    return any(residue.number == key for residue in found[:-1])


def _bound(first: ObservedResidue, second: ObservedResidue) -> bool:
    """Whether a peptide bond joins two residues."""
    if "C" not in first.atoms or "N" not in second.atoms:
        return False
    return bool(np.linalg.norm(first.atoms["C"] - second.atoms["N"]) < _BOND_ANGSTROM)


def _coordinates(residues: list[ObservedResidue], notes: Counter[str]) -> tuple[np.ndarray, np.ndarray]:
    """C-alphas and C-betas, each (L, 3) with nan where unknown; C-betas that are not there are made up from the backbone."""
    ca = np.full((len(residues), 3), np.nan, dtype=np.float32)
    cb = ca.copy()
    for i, residue in enumerate(residues):
        atoms = residue.atoms
        if "CA" in atoms:
            ca[i] = atoms["CA"]
        else:
            notes["residues without C-alpha"] += 1
        if "CB" in atoms:
            cb[i] = atoms["CB"]
        elif all(name in atoms for name in ("N", "CA", "C")):
            cb[i] = virtual_cb(atoms["N"], atoms["CA"], atoms["C"])
            if residue.letter != "G":
                notes["virtual C-beta atoms"] += 1
        elif residue.letter != "G":
            notes["residues without C-beta"] += 1
    return ca, cb


def _index(
    parsed: ParsedStructure,
    chain_id: str,
    letters: str,
    residues: list[ObservedResidue],
    numbers: tuple[str, ...],
    ca: np.ndarray,
    notes: Counter[str],
) -> np.ndarray:
    """Number of each residue along the chain: from the file's own list of residues, else from author's numbers at breaks."""
    with np.errstate(invalid="ignore"):
        apart = np.linalg.norm(np.diff(ca, axis=0), axis=1)
    # Unknown distances are no breaks by themselves: nan compares as False.
    breaks = np.flatnonzero(apart > BREAK_ANGSTROM)
    index = index_from_places(parsed.places.get(chain_id, {}), [residue.number for residue in residues])
    if index is None and chain_id in parsed.whole:
        index = index_from_seqres(parsed.whole[chain_id], letters, breaks, numbers)
    if index is not None:
        notes["chains numbered by the file's list of residues"] += 1
        return index
    if chain_id in parsed.whole or chain_id in parsed.places:
        notes["chains whose list of residues does not fit what was seen"] += 1
    notes["chains numbered by author's numbers at breaks"] += 1
    return index_of_numbers(numbers, breaks.tolist(), len(letters))
