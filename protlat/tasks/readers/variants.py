"""Tables of variants by name (H24C, several joined by ``:``): their sequences follow from the task's wild type."""

from __future__ import annotations

import re
from typing import Literal

from protlat.alphabet import STANDARD_RESIDUES
from protlat.data.records import SequenceReport
from protlat.errors import ConfigError, SequenceError
from protlat.tasks.readers.base import RawSet, ReadContext, SourceConfig, located
from protlat.tasks.readers.table import LABEL_NAMES, Delimiter, cell_text, needed_column, read_rows

MUTANT_NAMES = ("mutant", "mutants", "mutation", "mutations", "variant")
_MUTATION = re.compile(r"([A-Za-z])(-?\d+)([A-Za-z])")
_WILD_TYPE_WORDS = ("wt", "wild-type", "wild_type", "wildtype")


class VariantsSource(SourceConfig):
    """A table with a column of mutations and one of measured values."""

    kind: Literal["variants"] = "variants"
    mutant: str = ""
    """Column of the mutations; empty: mutant or mutation, whichever there is."""
    label: str = ""
    """Column of the measured values; empty: label, target ..."""
    delimiter: Delimiter = "auto"
    """What parts the columns; auto: whichever of comma, tab and semicolon the first line holds most of."""

    def read(self, context: ReadContext, report: SequenceReport) -> RawSet:
        path = located(context.folder, self.path)
        if not context.wild_type:
            raise ConfigError(
                f"{path}: a source of kind variants needs the task's wild_type, the sequence they derive from"
            )
        header, rows = read_rows(path, self.delimiter)
        mutant = needed_column(path, header, "mutant", self.mutant, MUTANT_NAMES)
        label = needed_column(path, header, "label", self.label, LABEL_NAMES)
        found = RawSet(path)
        for line, cells in rows:
            name = cell_text(cells[mutant])
            sequence = mutated(context.wild_type, name, context.offset, f"{path}:{line}")
            found.add(name, sequence.encode(), line, cell_text(cells[label]))
        return found


def mutated(wild_type: str, mutations: str, offset: int, where: str) -> str:
    """The wild type with mutations such as ``H24C:A30G`` made.

    Parameters
    ----------
    wild_type : str
    mutations : str
        Joined by ``:``, ``,`` or ``;``; "wt" for none.
    offset : int
        Number of the wild type's first residue.
    where : str
        For messages.

    Raises
    ------
    SequenceError
        Not a mutation, a position outside the sequence or named twice, or another residue in the wild type.
    """
    if mutations.lower() in _WILD_TYPE_WORDS:
        return wild_type
    residues = list(wild_type)
    seen: set[int] = set()
    for part in re.split(r"[:,;]", mutations):
        match = _MUTATION.fullmatch(part.strip())
        if match is None:
            raise SequenceError(f"{where}: {mutations!r} is not a mutation; expected H24C, several joined by ':'")
        old, new = match.group(1).upper(), match.group(3).upper()
        number = int(match.group(2))
        place = number - offset
        if not 0 <= place < len(wild_type):
            last = offset + len(wild_type) - 1
            raise SequenceError(f"{where}: {part}: position {number} is outside the wild type ({offset} to {last})")
        if wild_type[place] != old:
            raise SequenceError(
                f"{where}: {part}: the wild type has {wild_type[place]} at position {number}, not {old}"
            )
        if new not in STANDARD_RESIDUES:
            raise SequenceError(f"{where}: {part}: {new} is none of the 20 residues")
        if place in seen:
            raise SequenceError(f"{where}: {mutations}: position {number} stands twice")
        seen.add(place)
        residues[place] = new
    return "".join(residues)
