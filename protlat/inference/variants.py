"""Variants of a protein: what A24G means, and whether it fits the sequence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from protlat.alphabet import STANDARD_RESIDUES
from protlat.errors import SequenceError

WILD_TYPE_NAMES = frozenset({"", "wt", "_wt", "wild-type", "wildtype", "wild_type", "p.="})
_ONE = re.compile(r"([A-Za-z])(-?\d+)([A-Za-z*=-])")
_THREE = re.compile(r"([A-Za-z]{3})(-?\d+)([A-Za-z]{3}|=|\*)")


@dataclass(frozen=True, order=True)
class Mutation:
    """One residue replaced.

    Attributes
    ----------
    position : int
        As written, in the numbering of the file.
    wild_type, mutant : str
        One letter each.
    """

    position: int
    wild_type: str
    mutant: str

    def __str__(self) -> str:
        return f"{self.wild_type}{self.position}{self.mutant}"


@dataclass(frozen=True)
class Variant:
    """Any number of mutations at once; none is the wild type.

    Attributes
    ----------
    name : str
        As written.
    mutations : tuple of Mutation
        By position.
    place : str
        Where it stands: ``FILE:LINE``.
    """

    name: str
    mutations: tuple[Mutation, ...]
    place: str = ""


def parse_variant(text: str, place: str = "") -> Variant:
    """Read ``A24G``, ``A24G:T25S`` (also ``,`` ``;`` ``/`` ``+`` and blanks) or ``p.Ala24Gly``.

    Parameters
    ----------
    text : str
        Empty, ``WT`` or ``wild-type`` is the wild type.
    place : str
        Where it stands, for messages.

    Raises
    ------
    SequenceError
        The text is none of these, a new residue is not one of the 20, or a position stands twice.

    Examples
    --------
    >>> [str(m) for m in parse_variant("T25S:A24G").mutations]
    ['A24G', 'T25S']
    """
    where = f"{place}: " if place else ""
    name = text.strip()
    if name.lower() in WILD_TYPE_NAMES:
        return Variant(name or "WT", (), place)
    inside = re.sub(r"\[(.*)\]", r"\1", name.removeprefix("p."))
    parts = [part.removeprefix("p.") for part in re.split(r"[:,;/+\s]+", inside) if part]
    mutations = tuple(sorted(_mutation(part, name, where) for part in parts))
    repeated = [position for position, count in Counter(m.position for m in mutations).items() if count > 1]
    if repeated:
        raise SequenceError(f"{where}variant {name!r}: position {repeated[0]} stands twice")
    return Variant(name, mutations, place)


def _mutation(part: str, name: str, where: str) -> Mutation:
    found = _ONE.fullmatch(part)
    old, number, new = found.groups() if found else ("", "", "")
    if not found:
        found = _THREE.fullmatch(part)
        if found:
            from Bio.Data.IUPACData import protein_letters_3to1

            old = protein_letters_3to1.get(found[1].capitalize(), "")
            new = protein_letters_3to1.get(found[3].capitalize(), found[3] if found[3] in "=*" else "")
            number = found[2]
    old, new = old.upper(), old.upper() if new == "=" else new.upper()
    if not found or not old or not new:
        raise SequenceError(
            f"{where}variant {name!r}: {part!r} is no mutation; write A24G, several joined by ':', or p.Ala24Gly"
        )
    if new not in STANDARD_RESIDUES:
        kind = "a stop" if new == "*" else "a deletion" if new == "-" else f"{new!r}"
        raise SequenceError(
            f"{where}variant {name!r}: {part} ends in {kind}; only the 20 residues {STANDARD_RESIDUES} can be scored"
        )
    return Mutation(int(number), old, new)


def variant_between(wild_type: str, sequence: str, place: str = "", name: str = "", offset: int = 1) -> Variant:
    """The mutations that turn one sequence into another of the same length.

    Raises
    ------
    SequenceError
        The lengths differ, or a changed residue is not one of the 20.
    """
    where = f"{place}: " if place else ""
    sequence = sequence.strip().upper()
    if len(sequence) != len(wild_type):
        raise SequenceError(
            f"{where}a sequence of {len(sequence):,} residues is no variant of a wild type of {len(wild_type):,}: "
            "insertions and deletions cannot be scored"
        )
    mutations = []
    for index, (old, new) in enumerate(zip(wild_type, sequence, strict=True)):
        if old == new:
            continue
        if new not in STANDARD_RESIDUES:
            raise SequenceError(
                f"{where}position {index + offset} is {new!r}; only the 20 residues {STANDARD_RESIDUES} can be scored"
            )
        mutations.append(Mutation(index + offset, old, new))
    return Variant(name or ":".join(map(str, mutations)) or "WT", tuple(mutations), place)


def fault_of(variant: Variant, sequence: str, name: str, offset: int) -> str:
    """What does not fit between a variant and the sequence it is said to change; empty: nothing."""
    where = f"{variant.place}: " if variant.place else ""
    for mutation in variant.mutations:
        index = mutation.position - offset
        if not 0 <= index < len(sequence):
            return (
                f"{where}variant {variant.name!r}: position {mutation.position} lies outside {name!r}, whose residues are "
                f"numbered {offset} to {offset + len(sequence) - 1}"
            )
        if sequence[index] != mutation.wild_type:
            return (
                f"{where}variant {variant.name!r}: position {mutation.position} of {name!r} holds {sequence[index]!r}, not "
                f"{mutation.wild_type!r}"
            )
        if sequence[index] not in STANDARD_RESIDUES:
            return (
                f"{where}variant {variant.name!r}: position {mutation.position} of {name!r} holds {sequence[index]!r}, "
                f"which is not one of the 20 residues {STANDARD_RESIDUES}"
            )
    return ""


def fitting_offset(variants: Iterable[Variant], sequence: str) -> int | None:
    """Number of the first residue with which every variant's old residues are those of the sequence.

    Returns
    -------
    int or None
        None when no number, or more than one, fits.
    """
    wanted = {(m.position, m.wild_type) for variant in variants for m in variant.mutations}
    if not wanted:
        return None
    lowest, highest = min(wanted)[0], max(wanted)[0]
    fitting = [
        offset
        for offset in range(highest - len(sequence) + 1, lowest + 1)
        if all(sequence[position - offset] == letter for position, letter in wanted)
    ]
    return fitting[0] if len(fitting) == 1 else None


def sequence_of(variants: Sequence[Variant], where: str) -> tuple[str, int]:
    """The wild type as the variants' own letters spell it, and the number of its first residue.

    Raises
    ------
    SequenceError
        Two variants disagree about a position, or a position between the first and the last is in none.
    """
    letters: dict[int, tuple[str, Variant]] = {}
    for variant in variants:
        for mutation in variant.mutations:
            known, first = letters.setdefault(mutation.position, (mutation.wild_type, variant))
            if known != mutation.wild_type:
                raise SequenceError(
                    f"{variant.place}: variant {variant.name!r}: position {mutation.position} is {mutation.wild_type!r}, but "
                    f"{known!r} in {first.name!r} ({first.place})"
                )
    if not letters:
        raise SequenceError(f"{where}: no mutation in it, so it does not tell the wild type; give a FASTA")
    first_position, last = min(letters), max(letters)
    gaps = [position for position in range(first_position, last + 1) if position not in letters]
    if gaps:
        raise SequenceError(
            f"{where}: {len(gaps):,} of the positions {first_position} to {last} are in no variant (the first is "
            f"{gaps[0]}), so the wild type is not known there; give a FASTA"
        )
    return "".join(letters[position][0] for position in range(first_position, last + 1)), first_position
