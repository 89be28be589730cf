"""Chains with coordinates, as ``protlat prep structures`` writes them: the pairs of residues in contact follow from them."""

from __future__ import annotations

from typing import Literal

from protlat.data.chains import read_line
from protlat.data.records import SequenceReport
from protlat.errors import SequenceError
from protlat.tasks.data import PairTarget
from protlat.tasks.readers.base import RawSet, ReadContext, SourceConfig, located, read_text


class StructuresSource(SourceConfig):
    """Lines of JSON with sequence and coordinates, a chain each (see `protlat.data.chains`)."""

    kind: Literal["structures"] = "structures"

    def read(self, context: ReadContext, report: SequenceReport) -> RawSet:
        path = located(context.folder, self.path)
        found = RawSet(path)
        # Not splitlines: JSON text may hold other characters that it takes for line ends.
        for number, line in enumerate(read_text(path).split("\n"), start=1):
            if not line.strip():
                continue
            chain = read_line(line, f"{path}:{number}")
            target = PairTarget(chain.contact_atoms, chain.index)
            found.add(chain.identifier, chain.residues.encode("ascii"), number, target)
        if not len(found):
            raise SequenceError(f"{path}: no chain in it; expected one line of JSON per chain, with id, seq, ca and cb")
        return found
