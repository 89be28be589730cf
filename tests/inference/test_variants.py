"""Variants: reading, checking, scoring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.data.packing import pack_ids, with_specials
from protlat.errors import SequenceError
from protlat.evaluation.substitutions import substitution_scores
from protlat.inference.variant_files import read_variants
from protlat.inference.variant_scores import VariantScorer, apply_variant
from protlat.inference.variants import (
    fault_of,
    fitting_offset,
    parse_variant,
    sequence_of,
    variant_between,
)
from protlat.models import MaskedLM

WILD = "MKTAYIAKQRQISFVKSHFSRQ"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A24G", ["A24G"]),
        ("a24g", ["A24G"]),
        ("T25S:A24G", ["A24G", "T25S"]),
        ("A24G,T25S", ["A24G", "T25S"]),
        ("p.Ala24Gly", ["A24G"]),
        ("p.[Ala24Gly;Thr25Ser]", ["A24G", "T25S"]),
        ("A24=", ["A24A"]),
        ("A-3G", ["A-3G"]),
        ("WT", []),
        ("", []),
    ],
)
def test_ways_to_write_a_variant(text: str, expected: list[str]) -> None:
    assert [str(mutation) for mutation in parse_variant(text).mutations] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A24", r"f\.csv:3: variant 'A24': 'A24' is no mutation; write A24G"),
        ("A24*", r"variant 'A24\*': A24\* ends in a stop; only the 20 residues"),
        ("A24-", "ends in a deletion"),
        ("A24X", "ends in 'X'"),
        ("p.Ala24Zzz", "'Ala24Zzz' is no mutation"),
        ("A24G:A24S", "position 24 stands twice"),
    ],
)
def test_what_is_no_variant_is_named(text: str, message: str) -> None:
    with pytest.raises(SequenceError, match=message):
        parse_variant(text, "f.csv:3")


def test_a_variant_that_does_not_fit_names_position_and_letter() -> None:
    assert fault_of(parse_variant("K2A"), WILD, "wt", 1) == ""
    assert (
        fault_of(parse_variant("A2K", "f:9"), WILD, "wt", 1)
        == "f:9: variant 'A2K': position 2 of 'wt' holds 'K', not 'A'"
    )
    assert "position 23 lies outside 'wt', whose residues are numbered 1 to 22" in fault_of(
        parse_variant("Q23A"), WILD, "wt", 1
    )
    assert "position 9 lies outside" in fault_of(parse_variant("Q9A"), WILD, "wt", 10)
    assert "holds 'X', which is not one of the 20" in fault_of(parse_variant("X1A"), "XKT", "wt", 1)


def test_the_offset_that_fits_is_found() -> None:
    variants = [parse_variant(f"{letter}{index + 24}A") for index, letter in enumerate(WILD)]
    assert fitting_offset(variants, WILD) == 24
    assert fitting_offset([parse_variant("W30A")], WILD) is None
    assert sequence_of(variants, "f") == (WILD, 24)
    with pytest.raises(SequenceError, match=r"1 of the positions 24 to 45 are in no variant \(the first is 30\)"):
        sequence_of([v for v in variants if v.mutations[0].position != 30], "f")
    with pytest.raises(SequenceError, match=r"position 24 is 'W', but 'M' in 'M24A'"):
        sequence_of([*variants, parse_variant("W24A", "f:99")], "f")


def test_whole_sequences_become_variants() -> None:
    changed = variant_between(WILD, "G" + WILD[1:-1] + "a", offset=5)
    assert [str(m) for m in changed.mutations] == ["M5G", "Q26A"]
    assert apply_variant(WILD, changed, 5) == "G" + WILD[1:-1] + "A"
    assert variant_between(WILD, WILD).mutations == ()
    with pytest.raises(SequenceError, match=r"f:2: a sequence of 21 residues is no variant of a wild type of 22"):
        variant_between(WILD, WILD[1:], "f:2")
    with pytest.raises(SequenceError, match=r"position 1 is 'X'"):
        variant_between(WILD, "X" + WILD[1:])


def test_files_of_variants(tmp_path: Path) -> None:
    table = tmp_path / "dms.csv"
    table.write_bytes('\ufeff,mutant,2500\n0,K2A,1.5\n1,"T3A,A4G",\n'.encode())
    found = read_variants(str(table), value_columns=["2500"])
    assert [[str(m) for m in v.mutations] for v in found.variants] == [["K2A"], ["T3A", "A4G"]]
    assert found.values["2500"][0] == 1.5
    assert np.isnan(found.values["2500"][1])
    plain = tmp_path / "list.txt"
    plain.write_text("K2A  # first\n\nT3A:A4G\n")
    assert [v.place for v in read_variants(str(plain)).variants] == [f"{plain}:1", f"{plain}:3"]
    tabs = tmp_path / "s.tsv"
    tabs.write_text(f"seq\ty\n{WILD}\t0\nA{WILD[1:]}\t1\n")
    found = read_variants(str(tabs), sequence_column="seq", wild_type=WILD)
    assert [v.name for v in found.variants] == ["WT", "M1A"]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", "name,y\nK2A,1\n", {}, "which column holds the variants"),
        ("a.csv", "mutant,y\nK2A,1\n", {"value_columns": ["z"]}, "no column 'z'; there are 'mutant', 'y'"),
        ("a.csv", "mutant,y\nK2A,high\n", {"value_columns": ["y"]}, r"a\.csv:2: column 'y' holds 'high', which is not a number"),
        ("a.csv", "mutant,y\nK2A\n", {}, r"a\.csv:2: 1 columns, where the header names 2"),
        ("a.csv", "mutant,y\n", {}, "no variant in it"),
        ("a.csv", "", {}, "empty file"),
        ("a.txt", "K2A\nnonsense\n", {}, r"a\.txt:2: variant 'nonsense'"),
        ("a.txt", "K2A\n", {"value_columns": ["y"]}, "needs a .csv, .tsv or .parquet file"),
    ],
)  # fmt: skip
def test_faulty_files_are_one_line(
    tmp_path: Path, name: str, content: str, options: dict[str, list[str]], message: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(SequenceError, match=message):
        read_variants(str(path), **options)  # type: ignore[arg-type]


def _log_probabilities(model: MaskedLM, sequence: str, hidden: int | None) -> np.ndarray:
    """One plain forward pass, by position and residue, over the 20 residues."""
    ids = PROTEIN.encode(sequence).copy()
    if hidden is not None:
        ids[hidden] = PROTEIN.mask_id
    batch = pack_ids([with_specials(ids, PROTEIN)])
    with torch.inference_mode():
        logits = model(batch.tokens, batch.segments)[1:-1]
    return logits[:, [PROTEIN.ids[r] for r in "ACDEFGHIKLMNPQRSTVWY"]].log_softmax(-1).numpy()


def test_scores_against_plain_passes(model_folder: Path) -> None:
    model = MaskedLM.from_pretrained(model_folder)
    scorer = VariantScorer(model, toks_per_batch=70)  # about three copies a pass
    variants = [parse_variant(text) for text in ("K12A", "T13S:Q19E", "WT", "K12W")]
    column = {residue: index for index, residue in enumerate("ACDEFGHIKLMNPQRSTVWY")}
    seen = _log_probabilities(model, WILD, None)
    hidden = np.stack([_log_probabilities(model, WILD, i)[i] for i in range(len(WILD))])
    for scoring, table in (("wt-marginal", seen), ("masked-marginal", hidden)):
        expected = [
            sum(
                table[m.position - 11, column[m.mutant]] - table[m.position - 11, column[m.wild_type]]
                for m in v.mutations
            )
            for v in variants
        ]
        found = scorer.marginals(WILD, 11, variants, scoring, "wt")  # type: ignore[arg-type]
        np.testing.assert_allclose(found, expected, atol=2e-5)  # float32, other batches
        assert found[2] == 0


def test_pseudo_likelihood_against_plain_passes(model_folder: Path) -> None:
    model = MaskedLM.from_pretrained(model_folder)
    scorer = VariantScorer(model, toks_per_batch=70)
    column = {residue: index for index, residue in enumerate("ACDEFGHIKLMNPQRSTVWY")}
    sequences = [WILD, "A" + WILD[1:], "MKTX"]
    expected = [
        sum(_log_probabilities(model, s, i)[i, column[letter]] for i, letter in enumerate(s) if letter in column)
        for s in sequences
    ]
    done: list[int] = []
    found = list(scorer.pseudo_log_likelihoods(sequences, ["a", "b", "c"], done.append))
    np.testing.assert_allclose(found, expected, atol=2e-4)
    assert sum(done) == 22 + 22 + 3


def test_substitution_scores_are_the_published_tables() -> None:
    variants = [parse_variant(text) for text in ("W1W", "W1G", "I1V:I2R", "WT")]
    assert substitution_scores(variants, "blosum62").tolist() == [11, -2, 3 - 3, 0]
    np.testing.assert_allclose(substitution_scores(variants, "hydrophobicity"), [0, -0.5, -(0.3 + 9.0), 0])
