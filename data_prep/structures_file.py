"""One structure file to its part of the result, kept on disk until all files are done."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from protlat.data.chains import Chain
from protlat.data.structure_chain import chain_of
from protlat.data.structure_parse import ParsedStructure, parse_structure
from protlat.errors import SequenceError
from protlat.files import write_json

from .structures_config import PrepStructuresConfig

_ENDINGS = (".pdb", ".ent", ".cif", ".mmcif", ".pdb1")
_COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")


@dataclass
class StructurePart:
    """What one file gave.

    Attributes
    ----------
    path : str
    lines : list of str
        A line of JSON per chain.
    notes : dict of str to int
        Oddities by name.
    skipped : list of (str, str)
        Identifier of what was left out ("" for the file as a whole), and the reason.
    n_chains : int
        Protein chains seen in the models that were chosen.
    """

    path: str
    lines: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    n_chains: int = 0

    def write(self, path: Path) -> None:
        write_json(path, self.__dict__)

    @staticmethod
    def read(path: Path) -> StructurePart | None:
        """A part that an earlier run has finished; None where there is none."""
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        values["skipped"] = [(name, reason) for name, reason in values["skipped"]]
        return StructurePart(**values)


def stem_of(path: str) -> str:
    """A file's name without the endings of formats and compressions: ``1a8o.pdb.gz`` is ``1a8o``."""
    name = Path(path).name
    for endings in (_COMPRESSIONS, _ENDINGS):
        for ending in endings:
            if name.lower().endswith(ending) and len(name) > len(ending):
                name = name[: -len(ending)]
                break
    return "_".join(name.split())


def is_structure_name(path: Path) -> bool:
    """Whether a file in a folder looks like a structure by its name."""
    name = path.name.lower()
    for ending in _COMPRESSIONS:
        name = name.removesuffix(ending)
    return name.endswith(_ENDINGS) and not name.startswith(".")


def make_part(path: str, config: PrepStructuresConfig) -> StructurePart:
    """Read one file; a fault of the file leaves it out, with the reason."""
    part = StructurePart(path)
    notes: Counter[str] = Counter()
    try:
        parsed = parse_structure(path, config.model == "first")
        notes.update(parsed.notes)
        models = _chosen_models(parsed, config, path, notes)
        _require_chains(models, config, path)
    except SequenceError as error:
        part.skipped.append(("", str(error).removeprefix(f"{path}: ")))
        return part
    for model in models:
        for chain in model:
            if config.chains and _shown(chain.id) not in config.chains:
                notes["chains not asked for"] += 1
                continue
            own: Counter[str] = Counter()
            middle = f"{model.serial_num}_" if config.model == "all" and len(models) > 1 else ""
            found = chain_of(parsed, chain, f"{stem_of(path)}_{middle}{_shown(chain.id)}", path, own)
            if found is None:
                notes.update(own)
                continue
            part.n_chains += 1
            reason = _reason_to_leave_out(found, config)
            if reason is None:
                notes.update(own)
                part.lines.append(found.to_line())
            else:
                part.skipped.append((found.identifier, reason))
    part.notes = dict(notes)
    return part


def _shown(chain_id: str) -> str:
    """A chain's identifier; a blank one is written as an underscore."""
    return chain_id.strip() or "_"


def _chosen_models(parsed: ParsedStructure, config: PrepStructuresConfig, path: str, notes: Counter[str]) -> list[Any]:
    models = parsed.models
    if config.model == "all":
        return models
    chosen = models[:1] if config.model == "first" else [m for m in models if m.serial_num == config.model]
    if not chosen:
        numbers = [str(m.serial_num) for m in models]
        shown = ", ".join(numbers[:20]) + (" ..." if len(numbers) > 20 else "")
        raise SequenceError(f"{path}: no model {config.model}; its models: {shown}")
    notes["further models left out"] += parsed.n_models - 1
    return chosen


def _require_chains(models: list[Any], config: PrepStructuresConfig, path: str) -> None:
    present = list(dict.fromkeys(_shown(chain.id) for model in models for chain in model))
    missing = [chain for chain in config.chains if chain not in present]
    if missing and len(missing) == len(config.chains):
        raise SequenceError(f"{path}: no chain {', '.join(missing)}; its chains: {', '.join(present)}")


def _reason_to_leave_out(chain: Chain, config: PrepStructuresConfig) -> str | None:
    n = len(chain.residues)
    if n < config.min_length:
        return f"too short: {n} residues, --min-length {config.min_length}"
    if config.max_length is not None and n > config.max_length:
        return f"too long: {n} residues, --max-length {config.max_length}"
    n_known = int(np.isfinite(chain.contact_atoms).all(1).sum())
    # At least one, or there is nothing to learn from it.
    if n_known < max(config.min_known * n, 1):
        return f"too few C-betas: {n_known} of {n} residues, --min-known {config.min_known:g}"
    return None
