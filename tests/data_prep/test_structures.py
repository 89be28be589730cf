"""Chains of structure files: real ones, and each oddity by itself."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from protlat.cli.prep import prep
from protlat.data.chains import Chain, read_line
from protlat.data.structure_chain import chain_of
from protlat.data.structure_parse import parse_structure
from protlat.data.structure_residues import chosen_atoms, virtual_cb
from protlat.data_prep.structures import run
from protlat.data_prep.structures_config import PrepStructuresConfig
from protlat.errors import OutputError, ProtlatError, SequenceError

FILES = Path(__file__).parents[1] / "data_files" / "structures"
# Ideal geometry of a residue in angstrom (Engh and Huber 1991), the next one 3.8 further along x.
BACKBONE = {"N": (0.0, 1.46, 0.0), "CA": (0.0, 0.0, 0.0), "C": (1.42, -0.54, 0.0), "CB": (-0.53, -0.78, -1.21)}
Atom = tuple[str, str, str, int, str, tuple[float, float, float], float | None]


def atom_line(atom: Atom, serial: int, hetero: bool = False) -> str:
    name, altloc, residue, number, code, (x, y, z), occupancy = atom
    record = "HETATM" if hetero else "ATOM  "
    share = "      " if occupancy is None else f"{occupancy:6.2f}"
    return (
        f"{record}{serial:5d} {f' {name}':<4}{altloc:1}{residue:>3} A{number:4d}{code:1}   {x:8.3f}{y:8.3f}{z:8.3f}{share}"
        f"{10.0:6.2f}          {name[0]:>2}"
    )


def residue_lines(
    name: str, number: int, place: int, code: str = " ", without: Sequence[str] = (), hetero: bool = False
) -> list[str]:
    """Lines of one residue, the `place`-th along x."""
    # C to the next N: 1.33 along x, so that the chain is bound.
    return [
        atom_line((atom, " ", name, number, code, (x + 3.8 * place if atom != "N" else x + 3.8 * place - 1.05, y * 0 - 0.54 if atom == "N" else y, z), 1.0), 1, hetero)
        for atom, (x, y, z) in BACKBONE.items()
        if atom not in without and not (name == "GLY" and atom == "CB")
    ]  # fmt: skip


def read(tmp_path: Path, lines: Sequence[str]) -> tuple[Chain, Counter[str]]:
    """The first chain of a file of these lines, and its oddities."""
    path = tmp_path / "made.pdb"
    path.write_text("\n".join([*lines, "END"]) + "\n")
    parsed = parse_structure(str(path))
    notes = Counter(parsed.notes)
    chain = chain_of(parsed, next(iter(parsed.models[0])), "made_A", "made.pdb", notes)
    assert chain is not None
    return chain, notes


def run_on(tmp_path: Path, *inputs: str, **settings: object) -> tuple[dict[str, Chain], dict[str, object]]:
    output = tmp_path / "chains.jsonl"
    account = run(PrepStructuresConfig(inputs=inputs, output=str(output), **settings), overwrite=True)  # type: ignore[arg-type]  # settings by name
    lines = output.read_text().splitlines()
    chains = [read_line(line, f"chains.jsonl:{i}") for i, line in enumerate(lines, 1)]
    return {chain.identifier: chain for chain in chains}, account


def test_pdb_and_mmcif_of_an_entry_give_the_same_chain(tmp_path: Path) -> None:
    chains, account = run_on(tmp_path, str(FILES / "1a8o.pdb.gz"), str(FILES / "1a8o_cut.cif.gz"))
    first, second = chains["1a8o_A"], chains["1a8o_cut_A"]
    assert first.residues == "MDIRQGPKEPFRDYVDRFYKTLRAEQASQEVKNWMTETLLVQNANPDCKTILKALGPGATLEEMMTACQG"
    assert (first.residues, first.numbers) == (second.residues, second.numbers)
    np.testing.assert_array_equal(first.cb, second.cb)
    np.testing.assert_array_equal(first.index, second.index)
    assert account["modified residues mapped: MSE to M"] == 8
    assert account["chains numbered by the file's list of residues"] == 2
    assert account["waters left out"] == 176
    # Atom 20 of the file.
    np.testing.assert_allclose(first.ca[0], [20.255, 33.101, 26.891], atol=1e-3)


def test_virtual_betas_stand_where_real_ones_do() -> None:
    (model,) = parse_structure(str(FILES / "1a8o.pdb.gz")).models
    atoms = [chosen_atoms(residue, Counter()) for residue in model["A"] if residue.has_id("CB")]
    off = [np.linalg.norm(virtual_cb(found["N"], found["CA"], found["C"]) - found["CB"]) for found in atoms]
    assert len(off) == 66
    # Bonds are 1.53 long; real geometry strays from the ideal one by a few degrees.
    assert np.mean(off) < 0.15
    assert np.max(off) < 0.5


def test_glycine_has_a_virtual_beta_and_counts_by_its_alpha(tmp_path: Path) -> None:
    names = ["ALA", "GLY", "ALA"]
    chain, notes = read(tmp_path, [line for i, name in enumerate(names) for line in residue_lines(name, i + 1, i)])
    assert chain.residues == "AGA"
    assert 0.5 < np.linalg.norm(chain.cb[1] - chain.ca[1]) < 2
    np.testing.assert_array_equal(chain.contact_atoms[1], chain.ca[1])
    np.testing.assert_array_equal(chain.contact_atoms[0], chain.cb[0])
    assert "virtual C-beta atoms" not in notes


def test_missing_atoms(tmp_path: Path) -> None:
    lines = [
        *residue_lines("ALA", 1, 0, without=["CB"]),
        *residue_lines("LEU", 2, 1, without=["N", "CB"]),
        *residue_lines("SER", 3, 2, without=["CA"]),
        *residue_lines("VAL", 4, 3),
    ]
    chain, notes = read(tmp_path, lines)
    assert chain.residues == "ALSV"
    assert np.isfinite(chain.cb).all(1).tolist() == [True, False, True, True]
    assert np.isfinite(chain.ca).all(1).tolist() == [True, True, False, True]
    assert (notes["virtual C-beta atoms"], notes["residues without C-beta"], notes["residues without C-alpha"]) == (
        1,
        1,
        1,
    )
    assert read_line(chain.to_line(), "x:1").to_line() == chain.to_line()


@pytest.mark.parametrize(
    ("a", "b", "chosen"), [(0.3, 0.7, "B"), (0.7, 0.3, "A"), (0.5, 0.5, "A"), (None, None, "A"), (0.4, 0.6, "B")]
)
def test_the_alternate_location_of_highest_occupancy_counts(
    tmp_path: Path, a: float | None, b: float | None, chosen: str
) -> None:
    other: list[str] = []
    for letter, occupancy, shift in (("B", b, 5.0), ("A", a, 0.0)):
        for name, (x, y, z) in BACKBONE.items():
            other.append(atom_line((name, letter, "SER", 2, " ", (x + 3.8, y, z + shift), occupancy), 1))
    chain, notes = read(tmp_path, [*residue_lines("ALA", 1, 0), *other])
    assert chain.residues == "AS"
    assert chain.ca[1, 2] == (5.0 if chosen == "B" else 0.0)
    assert chain.cb[1, 2] == pytest.approx((5.0 if chosen == "B" else 0.0) - 1.21)
    assert notes["residues with alternate locations"] == 1


def test_one_alternate_location_serves_the_whole_residue(tmp_path: Path) -> None:
    """C-beta alone would choose B, the residue as a whole chooses A."""
    lines = []
    shares = {"N": (0.8, 0.2), "CA": (0.8, 0.2), "C": (0.8, 0.2), "CB": (0.45, 0.55)}
    for name, (x, y, z) in BACKBONE.items():
        for letter, occupancy, shift in zip("AB", shares[name], (0.0, 5.0), strict=True):
            lines.append(atom_line((name, letter, "SER", 1, " ", (x, y, z + shift), occupancy), 1))
    chain, _ = read(tmp_path, [*lines, *residue_lines("ALA", 2, 1)])
    assert chain.cb[0, 2] == pytest.approx(-1.21)


def test_two_kinds_of_residue_at_one_place(tmp_path: Path) -> None:
    lines = residue_lines("ALA", 1, 0)
    for letter, kind, occupancy in (("A", "SER", 0.4), ("B", "THR", 0.6)):
        for name, (x, y, z) in BACKBONE.items():
            lines.append(atom_line((name, letter, kind, 2, " ", (x + 3.8, y, z), occupancy), 1))
    chain, notes = read(tmp_path, [*lines, *residue_lines("GLY", 3, 2)])
    assert chain.residues == "ATG"
    assert notes["places with two kinds of residue"] == 1


def test_insertion_codes_are_residues_of_their_own(tmp_path: Path) -> None:
    lines = [
        *residue_lines("ALA", 52, 0),
        *residue_lines("LEU", 52, 1, code="A"),
        *residue_lines("SER", 52, 2, code="B"),
        *residue_lines("VAL", 60, 3),
    ]
    chain, notes = read(tmp_path, lines)
    assert (chain.residues, chain.numbers) == ("ALSV", ("52", "52A", "52B", "60"))
    # The jump of numbers is none of the chain, whose residues are neighbours.
    assert chain.index.tolist() == [0, 1, 2, 3]
    assert notes["residues with insertion codes"] == 2


def test_unobserved_residues_by_authors_numbers_where_the_chain_breaks(tmp_path: Path) -> None:
    lines = [
        *residue_lines("ALA", 5, 0),
        *residue_lines("LEU", 6, 1),
        *residue_lines("SER", 20, 4),
        *residue_lines("VAL", 21, 5),
    ]
    chain, notes = read(tmp_path, lines)
    assert chain.index.tolist() == [0, 1, 15, 16]
    assert notes["unobserved residues counted"] == 13
    assert notes["chains numbered by author's numbers at breaks"] == 1


def test_seqres_says_how_many_residues_nobody_saw(tmp_path: Path) -> None:
    """Author's numbers claim 13 missing residues; SEQRES knows of three, and of a residue before the first."""
    lines = [
        "SEQRES   1 A    8  MET ALA LEU GLY GLY PRO SER VAL",
        *residue_lines("ALA", 5, 0), *residue_lines("LEU", 6, 1), *residue_lines("SER", 20, 4), *residue_lines("VAL", 21, 5),
    ]  # fmt: skip
    chain, notes = read(tmp_path, lines)
    assert chain.index.tolist() == [0, 1, 5, 6]
    assert notes["unobserved residues counted"] == 3
    other = ["SEQRES   1 A    4  TRP TRP TRP TRP", *lines[1:]]
    chain, notes = read(tmp_path, other)
    assert chain.index.tolist() == [0, 1, 15, 16]
    assert notes["chains whose list of residues does not fit what was seen"] == 1


def test_among_several_places_the_authors_numbers_choose(tmp_path: Path) -> None:
    lines = [
        "SEQRES   1 A    9  ALA LEU SER GLY SER GLY SER GLY VAL",
        *residue_lines("ALA", 1, 0), *residue_lines("LEU", 2, 1), *residue_lines("SER", 5, 4), *residue_lines("GLY", 6, 5),
    ]  # fmt: skip
    assert read(tmp_path, lines)[0].index.tolist() == [0, 1, 4, 5]


def test_an_amino_acid_among_the_ligands_is_none_of_the_chain(tmp_path: Path) -> None:
    lines = [
        *residue_lines("ALA", 1, 0),
        *residue_lines("MSE", 2, 1, hetero=True),
        *residue_lines("VAL", 3, 2),
        *residue_lines("GLU", 300, 20, hetero=True),
        atom_line(("C1", " ", "GOL", 301, " ", (90.0, 0.0, 0.0), 1.0), 1, True),
        atom_line(("O", " ", "HOH", 401, " ", (95.0, 0.0, 0.0), 1.0), 1, True),
    ]
    chain, notes = read(tmp_path, lines)
    assert chain.residues == "AMV"
    assert (notes["ligands left out"], notes["waters left out"]) == (2, 1)
    assert notes["modified residues mapped: MSE to M"] == 1


def test_a_parent_that_the_file_names_comes_before_the_table(tmp_path: Path) -> None:
    lines = [
        "MODRES 1XXX ZZZ A    2  TYR  MADE UP",
        *residue_lines("ALA", 1, 0),
        *residue_lines("ZZZ", 2, 1, hetero=True),
    ]
    assert read(tmp_path, lines)[0].residues == "AY"


def test_models(tmp_path: Path) -> None:
    path = str(FILES / "1l2y_cut.pdb.gz")
    first, account = run_on(tmp_path, path)
    assert list(first) == ["1l2y_cut_A"]
    assert account["further models left out"] == 1
    second, _ = run_on(tmp_path, path, model=2)
    every, _ = run_on(tmp_path, path, model="all")
    assert list(every) == ["1l2y_cut_1_A", "1l2y_cut_2_A"]
    np.testing.assert_array_equal(every["1l2y_cut_2_A"].ca, second["1l2y_cut_A"].ca)
    assert np.abs(every["1l2y_cut_2_A"].ca - first["1l2y_cut_A"].ca).max() > 0.01
    with pytest.raises(SequenceError, match="no model 9; its models: 1, 2"):
        run_on(tmp_path, path, model=9)


def test_protein_beside_dna(tmp_path: Path) -> None:
    chains, account = run_on(tmp_path, str(FILES / "1lcd_cut.pdb.gz"))
    assert [chain.residues for chain in chains.values()] == ["MKPVTLYDVAEY"]
    assert account["nucleic chains left out"] == 1


def test_seqres_of_a_real_file_counts_what_is_missing_within_only(tmp_path: Path) -> None:
    chains, account = run_on(tmp_path, str(FILES / "2beg_cut.pdb.gz"))
    assert [chain.index[-1] for chain in chains.values()] == [25, 25]
    dropped, account = run_on(tmp_path, str(FILES / "2beg_cut.pdb.gz"), duplicates="drop")
    assert list(dropped) == ["2beg_cut_A"]
    assert account["chains of equal sequence dropped"] == 1
    assert "same sequence as 2beg_cut_A" in (tmp_path / "chains.skipped.tsv").read_text()


def test_faulty_lines_are_counted(tmp_path: Path) -> None:
    _, account = run_on(tmp_path, str(FILES / "disordered.pdb"), str(FILES / "occupancy.pdb"), min_length=1)
    # One line ends before occupancy and temperature factor.
    assert (account["atoms without occupancy"], account["faults in atom lines passed over"]) == (1, 1)
    assert account["chains written"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("HEADER    NOTHING\nEND\n", "no atoms"),
        ("data_x\nloop_\n_entry.id\nx\n", "no atoms: mmCIF without an _atom_site table"),
        (">seq\nACDEFG\n", "neither PDB nor mmCIF"),
        ("data_x\nloop_\n_atom_site.id\n1\n", "not readable as mmCIF"),
    ],
)
def test_files_without_a_structure_leave_one_line_and_no_output(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.pdb"
    path.write_text(text)
    with pytest.raises(SequenceError, match=message) as caught:
        run_on(tmp_path, str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert not list(tmp_path.glob("chains*"))
    assert not list(tmp_path.glob(".chains*"))
    # Beside a good file it is left out, and named.
    chains, account = run_on(tmp_path, str(path), str(FILES / "2beg_cut.pdb.gz"))
    assert len(chains) == 2
    assert account["files left out"] == 1
    assert message in (tmp_path / "chains.skipped.tsv").read_text()


def test_a_chain_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SequenceError, match="no chain Q; its chains: A"):
        run_on(tmp_path, str(FILES / "1a8o.pdb.gz"), chains=("Q",))
    chains, _ = run_on(tmp_path, str(FILES / "2beg_cut.pdb.gz"), chains=("B",))
    assert list(chains) == ["2beg_cut_B"]


def test_limits_and_traces(tmp_path: Path) -> None:
    with pytest.raises(SequenceError, match="too long: 70 residues"):
        run_on(tmp_path, str(FILES / "1a8o.pdb.gz"), max_length=50)
    trace = tmp_path / "trace.pdb"
    lines = [line for i in range(12) for line in residue_lines("ALA", i + 1, i, without=["N", "C", "CB"])]
    trace.write_text("\n".join(lines) + "\n")
    with pytest.raises(SequenceError, match="too few C-betas: 0 of 12 residues"):
        run_on(tmp_path, str(trace))


def test_existing_outputs_and_alien_folders_stay(tmp_path: Path) -> None:
    source = str(FILES / "2beg_cut.pdb.gz")
    output = tmp_path / "chains.jsonl.gz"
    config = PrepStructuresConfig(inputs=(source,), output=str(output))
    run(config)
    before = output.read_bytes()
    with pytest.raises(OutputError, match="--overwrite"):
        run(config)
    run(config, overwrite=True)
    assert output.read_bytes() == before
    assert len(gzip.decompress(before).splitlines()) == 2
    alien = tmp_path / "folder"
    alien.mkdir()
    (alien / "thesis.docx").write_text("x")
    with pytest.raises(OutputError, match=r"holds other files, such as thesis.docx"):
        run(PrepStructuresConfig(inputs=(source,), output=str(alien)), overwrite=True)
    assert (alien / "thesis.docx").read_text() == "x"


def test_a_folder_holds_one_file_per_structure(tmp_path: Path) -> None:
    output = tmp_path / "out"
    run(PrepStructuresConfig(inputs=(str(FILES),), output=str(output)))
    names = sorted(path.name for path in output.iterdir())
    assert names == [
        "1a8o.jsonl",
        "1a8o_cut.jsonl",
        "1l2y_cut.jsonl",
        "1lcd_cut.jsonl",
        "2beg_cut.jsonl",
        "skipped.tsv",
    ]
    assert len((output / "2beg_cut.jsonl").read_text().splitlines()) == 2


def test_a_stopped_run_goes_on_and_workers_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from protlat.data_prep import structures

    inputs = tuple(str(path) for path in sorted(FILES.glob("*.gz")))
    whole, _ = run_on(tmp_path, *inputs)
    made: list[str] = []
    make = structures.make_part

    def stopping(path: str, config: PrepStructuresConfig) -> object:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(path)
        return make(path, config)

    output = tmp_path / "again.jsonl"
    config = PrepStructuresConfig(inputs=inputs, output=str(output))
    monkeypatch.setattr(structures, "make_part", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(config)
    assert not output.exists()
    rest: list[str] = []
    monkeypatch.setattr(structures, "make_part", lambda path, config: (rest.append(path), make(path, config))[1])
    run(config)
    assert sorted(made + rest) == sorted(inputs)
    assert output.read_text() == (tmp_path / "chains.jsonl").read_text()
    monkeypatch.undo()
    parallel = tmp_path / "parallel.jsonl"
    run(PrepStructuresConfig(inputs=inputs, output=str(parallel), workers=2))
    assert parallel.read_text() == output.read_text()
    assert whole


def test_the_command_line(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    done = CliRunner().invoke(prep, ["structures", str(FILES / "1a8o.pdb.gz"), "-o", str(output), "--chain", "A"])
    assert done.exit_code == 0, done.output
    assert json.loads(output.read_text())["id"] == "1a8o_A"
    bad = CliRunner().invoke(prep, ["structures", str(tmp_path / "none.pdb"), "-o", str(tmp_path / "x.jsonl")])
    assert isinstance(bad.exception, ProtlatError)
    assert "no such file or folder" in str(bad.exception)
    assert "--chain" in CliRunner().invoke(prep, ["structures", "--help"]).output
    assert "structures" in CliRunner().invoke(prep, ["--help"]).output
