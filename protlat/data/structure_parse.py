"""A structure file through Biopython: its models, and what it says about residues that nobody saw."""

from __future__ import annotations

import io
import re
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from protlat.data.compression import ByteSource
from protlat.data.structure_residues import letter_of
from protlat.errors import SequenceError

# Author's number and insertion code ("" for none): (52, "A").
Number = tuple[int, str]


@dataclass
class ParsedStructure:
    """What a file holds.

    Attributes
    ----------
    models : list
        Biopython's models.
    parents : dict of str to str
        Parent of each modified component, where the file names it.
    places : dict of str to dict
        By chain: place along the whole chain of each residue by author's number (mmCIF).
    whole : dict of str to str
        By chain: letters of the whole chain, unobserved residues included (PDB, SEQRES).
    notes : Counter
        What the parser passed over, by name.
    n_models : int
        Models in the file, of which `models` may be the first only.
    """

    models: list[Any]
    parents: dict[str, str] = field(default_factory=dict)
    places: dict[str, dict[Number, int]] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    n_models: int = 1


def parse_structure(path: str, first_only: bool = False) -> ParsedStructure:
    """Read a PDB or mmCIF file; which of them it is, the content says.

    With `first_only`, models behind the first may be passed over, and are only counted.

    Raises
    ------
    SequenceError
        The file cannot be read, is neither, is malformed, or holds no atom.
    """
    text = b"".join(ByteSource(path).chunks()).decode("utf-8", errors="replace")
    kind = _kind_of(text, path)
    parse = _parse_mmcif if kind == "mmCIF" else _parse_pdb
    end = text.find("\nENDMDL") if first_only and kind == "PDB" else -1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = parse(text if end < 0 else text[:end])
        except SequenceError:
            raise
        # Malformed files end in any of these, somewhere inside Biopython (its own errors are no ValueErrors).
        except Exception as error:
            if isinstance(error, MemoryError | OSError):
                raise
            raise SequenceError(f"{path}: not readable as {kind}: {type(error).__name__}: {error}") from None
    found.n_models = len(found.models) if end < 0 else len(re.findall(r"^MODEL ", text, re.MULTILINE))
    for warning in caught:
        if "Exception ignored" in str(warning.message):
            found.notes["faults in atom lines passed over"] += 1
    if not any(True for model in found.models for _ in model.get_atoms()):
        raise SequenceError(f"{path}: no atoms: it is {kind}, but without a single atom record that can be read")
    return found


def _kind_of(text: str, path: str) -> str:
    if re.search(r"^data_", text, re.MULTILINE) and "_atom_site." in text:
        return "mmCIF"
    if re.search(r"^(ATOM  |HETATM|HEADER|SEQRES|CRYST1|MODEL |REMARK)", text, re.MULTILINE):
        return "PDB"
    if not text.strip():
        raise SequenceError(f"{path}: empty")
    if re.search(r"^data_", text, re.MULTILINE):
        raise SequenceError(f"{path}: no atoms: mmCIF without an _atom_site table")
    raise SequenceError(f"{path}: neither PDB nor mmCIF; it begins with {text.lstrip()[:30]!r}")


def _parse_pdb(text: str) -> ParsedStructure:
    from Bio.PDB.PDBParser import PDBParser

    text, n_blank = _with_occupancies(text)
    models = list(PDBParser(PERMISSIVE=True).get_structure("structure", io.StringIO(text)))
    parents: dict[str, str] = {}
    names: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("MODRES"):
            parents[line[12:15].strip()] = line[24:27].strip()
        elif line.startswith("SEQRES"):
            names.setdefault(line[11:12], []).extend(line[19:70].split())
        elif line.startswith(("ATOM  ", "HETATM")):
            break  # both stand before the coordinates, which are most of the file
    whole = {}
    for chain, residues in names.items():
        letters = [letter_of(name, parents) for name in residues]
        # Nucleic chains have SEQRES too; caps at the ends (ACE, NH2) are no residues.
        if any(letters):
            whole[chain] = "".join(letter for letter in letters if letter)
    return ParsedStructure(
        models, parents, whole=whole, notes=Counter({"atoms without occupancy": n_blank} if n_blank else {})
    )


def _with_occupancies(text: str) -> tuple[str, int]:
    """Atom lines whose occupancy is blank get a zero, and how many they are: Biopython cannot compare alternatives without."""
    blank = re.compile(r"^((?:ATOM  |HETATM).{48})(?: {6}| {0,5}$)", re.MULTILINE)
    return blank.subn(r"\1  0.00", text)


def _parse_mmcif(text: str) -> ParsedStructure:
    from Bio.PDB.MMCIF2Dict import MMCIF2Dict
    from Bio.PDB.MMCIFParser import MMCIFParser

    models = list(MMCIFParser().get_structure("structure", io.StringIO(text)))
    table = MMCIF2Dict(io.StringIO(text))

    def column(name: str) -> list[str]:
        return [str(value) for value in table.get(name, [])]

    parents = dict(
        zip(
            column("_pdbx_struct_mod_residue.auth_comp_id"),
            column("_pdbx_struct_mod_residue.parent_comp_id"),
            strict=False,
        )
    )
    places: dict[str, dict[Number, int]] = {}
    scheme = (
        column(f"_pdbx_poly_seq_scheme.{key}") for key in ("pdb_strand_id", "pdb_seq_num", "pdb_ins_code", "seq_id")
    )
    for chain, number, insertion, place in zip(*scheme, strict=False):
        if number.lstrip("-").isdecimal() and place.isdecimal():
            code = "" if insertion in (".", "?") else insertion
            places.setdefault(chain, {})[int(number), code] = int(place)
    return ParsedStructure(models, parents, places=places)
