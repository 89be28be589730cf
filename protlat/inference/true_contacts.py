"""The true contacts of a sequence, from a structure that holds it."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from protlat.data.chains import Chain
from protlat.data.structure_index import places_in
from protlat.errors import SequenceError
from protlat.tasks.data import PairTarget


class TrueChain(NamedTuple):
    """Coordinates for a sequence.

    Attributes
    ----------
    target : PairTarget
        Of all residues of the sequence; those that were not seen have no coordinates.
    chain : str
        The chain's identifier in the structure.
    n_observed : int
        Residues of the sequence with coordinates.
    """

    target: PairTarget
    chain: str
    n_observed: int


def true_chain(path: str, sequence: str, name: str, chain: str | None = None) -> TrueChain:
    """Read the chain of a structure that fits a sequence.

    Parameters
    ----------
    path : str
        PDB or mmCIF, plain or compressed.
    sequence : str
        Letters; every stretch of observed residues must stand in it, in order.
    name : str
        What to call the sequence in messages.
    chain : str or None
        Chain to take; None: the first that fits.

    Raises
    ------
    SequenceError
        The structure cannot be read, has no such chain, or no chain that fits.
    """
    from protlat.data.structure_chain import chain_of
    from protlat.data.structure_parse import parse_structure

    parsed = parse_structure(path, first_only=True)
    names = {found.id.strip() or "_": found for found in parsed.models[0]}
    if chain is not None and chain not in names:
        raise SequenceError(f"{path}: no chain {chain}; its chains: {', '.join(names)}")
    told = []
    for label in names if chain is None else [chain]:
        found = chain_of(parsed, names[label], label, path, Counter())
        if found is None:
            told.append(f"{label} (no protein)")
            continue
        target = _placed(found, sequence)
        if target is not None:
            return TrueChain(target, label, int(np.isfinite(target.xyz).all(1).sum()))
        told.append(f"{label} ({len(found.residues)} residues, {found.residues[:10]}...)")
    raise SequenceError(
        f"{path}: does not fit the sequence {name!r} ({len(sequence)} residues, {sequence[:10]}...): its observed stretches do "
        f"not all stand in it; chains tried: {', '.join(told)}"
    )


def _placed(chain: Chain, sequence: str) -> PairTarget | None:
    breaks = np.flatnonzero(np.diff(chain.index) > 1)
    places = places_in(sequence, chain.residues, breaks, chain.numbers)
    if places is None:
        return None
    xyz = np.full((len(sequence), 3), np.nan, dtype=np.float32)
    xyz[places] = chain.contact_atoms
    return PairTarget(xyz, np.arange(len(sequence)))
