"""`protlat predict variants` end to end."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protlat.alphabet import BYTES, PROTEIN
from protlat.errors import ConfigError, OutputError, SequenceError
from protlat.models import MaskedLM, ModelConfig
from protlat.pipelines.predict_variants import PredictVariantsConfig, run

WILD = "MKTAYIAKQRQISFVKSHFSRQ"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    folder = tmp_path_factory.mktemp("models") / "toy"
    MaskedLM(ModelConfig(d_model=16, n_layers=2, head_dim=8), PROTEIN).save_pretrained(folder)
    return folder


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "wt.fasta").write_text(f">wt a protein\n{WILD}\n")
    lines = ["mutant,fitness,other"]
    lines += [f"{old}{i + 5}{new},{(i * 7) % 11},{i}" for i, old in enumerate(WILD) for new in "AW" if new != old]
    (tmp_path / "dms.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def config(model: Path, folder: Path, **changes: Any) -> PredictVariantsConfig:
    values = {
        "input": str(folder / "wt.fasta"), "model": str(model), "output": str(folder / "out.tsv"), "dtype": "float32",
        "device": "cpu", "mutants": str(folder / "dms.csv"), "offset": 5, "n_bootstrap": 50,
    }  # fmt: skip
    return PredictVariantsConfig.load(None, (), **{**values, **changes})


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle, delimiter="\t"))


def test_a_table_with_correlations(model_folder: Path, files: Path) -> None:
    summary = run(config(model_folder, files, score_column="fitness", compare_columns=["other"]))
    rows = rows_of(files / "out.tsv")
    assert list(rows[0]) == [
        "identifier",
        "variant",
        "n_mutations",
        "score",
        "blosum62",
        "hydrophobicity",
        "fitness",
        "other",
    ]
    assert rows[0]["variant"] == "M5A"
    assert {name for name in summary if name.startswith("Spearman")} == {
        f"Spearman with fitness: {who}"
        for who in ("the model (masked-marginal)", "blosum62", "hydrophobicity", "other")
    }
    from scipy.stats import spearmanr

    expected = spearmanr([float(r["score"]) for r in rows], [float(r["fitness"]) for r in rows]).statistic
    saved = json.loads((files / "out.scores.json").read_text())
    assert saved["spearman"]["score"]["value"] == pytest.approx(expected, abs=1e-3)  # six digits in the table
    assert saved["wild_type"] == {"name": "wt", "sequence": WILD, "offset": 5}


def test_the_wild_type_from_the_mutants_gives_the_same_scores(model_folder: Path, files: Path) -> None:
    run(config(model_folder, files))
    again = {"input": None, "offset": None, "sequence_from_mutants": True, "output": str(files / "again.tsv")}
    # Position 8 holds A, and A has W as its only mutant: every position is there.
    run(config(model_folder, files, **again))
    first, second = rows_of(files / "out.tsv"), rows_of(files / "again.tsv")
    assert [r["score"] for r in first] == [r["score"] for r in second]


def test_scan_agrees_with_single_variants_and_is_drawn(model_folder: Path, files: Path) -> None:
    pytest.importorskip("matplotlib")
    for scoring in ("masked-marginal", "wt-marginal"):
        run(config(model_folder, files, scoring=scoring, overwrite=True))
        scan = {"mutants": None, "scan": True, "scoring": scoring, "output": str(files / f"{scoring}.parquet")}
        summary = run(config(model_folder, files, **scan, plot=str(files / f"{scoring}.png")))
        assert summary["positions scored"] == len(WILD)
        import pyarrow.parquet as pq

        table = pq.read_table(files / f"{scoring}.parquet").to_pylist()
        assert len(table) == 20 * len(WILD)
        by_name = {row["variant"]: row["score"] for row in table}
        for row in rows_of(files / "out.tsv"):
            assert by_name[row["variant"]] == pytest.approx(float(row["score"]), abs=2e-5)
        assert by_name["M5M"] == 0
        assert (files / f"{scoring}.png").read_bytes().startswith(b"\x89PNG")


def test_pseudo_perplexity(model_folder: Path, files: Path) -> None:
    (files / "few.txt").write_text("WT\nM5A:K6G\n")
    run(config(model_folder, files, mutants=str(files / "few.txt"), scoring="pseudo-perplexity"))
    rows = rows_of(files / "out.tsv")
    assert float(rows[0]["score"]) == pytest.approx(0, abs=1e-4)
    ratio = np.log(float(rows[0]["pseudo_perplexity"]) / float(rows[1]["pseudo_perplexity"])) * len(WILD)
    assert float(rows[1]["score"]) == pytest.approx(ratio, abs=1e-3)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("M5A\nA6G\n", r"few\.txt:2: variant 'A6G': position 6 of 'wt' holds 'K', not 'A'$"),
        ("M5A\nK99G\n", r"few\.txt:2: variant 'K99G': position 99 lies outside 'wt', whose residues are numbered 5 to 26$"),
        ("".join(f"{old}{i + 7}A\n" for i, old in enumerate(WILD)), r"not 'M'; all variants fit with --offset 7$"),
        ("M5*\n", "ends in a stop"),
    ],
)  # fmt: skip
def test_a_variant_that_does_not_fit_stops_before_any_output(
    model_folder: Path, files: Path, lines: str, message: str
) -> None:
    (files / "few.txt").write_text(lines)
    with pytest.raises(SequenceError, match=message):
        run(config(model_folder, files, mutants=str(files / "few.txt")))
    assert not (files / "out.tsv").exists()


def test_bad_variants_can_be_left_out_and_listed(model_folder: Path, files: Path) -> None:
    (files / "few.txt").write_text("M5A\nA6G\nnonsense\nK6G\n")
    summary = run(config(model_folder, files, mutants=str(files / "few.txt"), bad="skip"))
    assert [row["variant"] for row in rows_of(files / "out.tsv")] == ["M5A", "K6G"]
    assert summary["left out"] == 2
    left_out = rows_of(files / "out.skipped.tsv")
    assert sorted((row["line"], row["identifier"]) for row in left_out) == [("2", "A6G"), ("3", "")]


def test_which_sequence_is_asked_for(model_folder: Path, files: Path) -> None:
    (files / "wt.fasta").write_text(f">a\nMKT\n>wt\n{WILD}\n")
    with pytest.raises(SequenceError, match=r"2 sequences \(a, wt\); choose the wild type with --identifier"):
        run(config(model_folder, files))
    with pytest.raises(SequenceError, match="no sequence 'b'; there are a, wt"):
        run(config(model_folder, files, identifier="b"))
    assert run(config(model_folder, files, identifier="wt"))["variants scored"] == len(rows_of(files / "out.tsv"))


def test_earlier_results_stay(model_folder: Path, files: Path) -> None:
    (files / "out.tsv").write_text("mine")
    with pytest.raises(OutputError, match="exists; replace it with --overwrite"):
        run(config(model_folder, files))
    (files / "few.txt").write_text("A5G\n")
    with pytest.raises(SequenceError):
        run(config(model_folder, files, mutants=str(files / "few.txt"), overwrite=True))
    assert (files / "out.tsv").read_text() == "mine"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scan": True}, "leave --mutants"),
        ({"plot": "a.png"}, "--plot draws a --scan"),
        ({"mutants": None, "scan": True, "scoring": "pseudo-perplexity"}, "--scan needs --scoring"),
        ({"sequence_from_mutants": True}, "leave the FASTA"),
        ({"mutant_column": "a", "sequence_column": "b"}, "exclude each other"),
        ({"compare_columns": ["b"]}, "needs --score-column"),
        ({"mutants": None}, r"variants \(--mutants, or --scan\): nothing given"),
        ({"input": None}, r"wild type \(FASTA, or --sequence-from-mutants\): nothing given"),
    ],
)
def test_settings_that_do_not_fit(model_folder: Path, files: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(config(model_folder, files, **changes))


def test_a_model_of_documents_is_refused(files: Path) -> None:
    MaskedLM(ModelConfig(d_model=16, n_layers=1, head_dim=8), BYTES).save_pretrained(files / "bytes")
    with pytest.raises(SequenceError, match="reads bytes, not residues"):
        run(config(files / "bytes", files))
