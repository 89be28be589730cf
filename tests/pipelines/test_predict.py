"""`protlat predict masked` end to end."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.data.packing import pack_ids, with_specials
from protlat.errors import ConfigError, OutputError, SequenceError
from protlat.models import MaskedLM, ModelConfig
from protlat.pipelines.predict import PredictMaskedConfig, run

PROTEINS = Path(__file__).parents[1] / "data_files" / "inference" / "pyfastx_protein.fa"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    folder = tmp_path_factory.mktemp("models") / "toy"
    MaskedLM(ModelConfig(d_model=16, n_layers=2, head_dim=8), PROTEIN).save_pretrained(folder)
    return folder


def config(model: Path, source: Any, output: Path, **changes: Any) -> PredictMaskedConfig:
    values = {"inputs": [str(source)], "model": str(model), "output": str(output), "dtype": "float32", "device": "cpu"}
    return PredictMaskedConfig.load(None, (), **{**values, "toks_per_batch": 500, **changes})


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle, delimiter="\t"))


def expected_residues(model_folder: Path, text: str, position_1based: int) -> dict[str, float]:
    model = MaskedLM.from_pretrained(model_folder)
    batch = pack_ids([with_specials(PROTEIN.encode(text), PROTEIN)])
    with torch.inference_mode():
        logits = model(batch.tokens, batch.segments)[position_1based]
    residues = "ACDEFGHIKLMNPQRSTVWY"
    values = logits[[PROTEIN.ids[residue] for residue in residues]].softmax(0).tolist()
    return dict(zip(residues, values, strict=True))


def test_positions_of_seventeen_real_proteins(model_folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "masked.tsv"
    account = run(config(model_folder, PROTEINS, output, positions=[5, 10], top_k=3))
    rows = rows_of(output)
    assert len(rows) == 17 * 2 * 3
    assert account["sequences predicted"] == 17
    assert list(rows[0]) == ["identifier", "position_1based", "wild_type", "rank", "residue", "probability"]
    assert [row["position_1based"] for row in rows[:6]] == ["5"] * 3 + ["10"] * 3
    assert [row["rank"] for row in rows[:3]] == ["1", "2", "3"]
    text = "".join(PROTEINS.read_text().split(">")[1].splitlines()[1:])
    assert rows[0]["wild_type"] == text[4]
    # One mask at a time: position 10 keeps its residue while 5 is predicted.
    expected = expected_residues(model_folder, text[:4] + "<mask>" + text[5:], 5)
    best = sorted(expected, key=lambda residue: -expected[residue])[:3]
    assert [row["residue"] for row in rows[:3]] == best
    for row in rows[:3]:
        assert float(row["probability"]) == pytest.approx(expected[row["residue"]], rel=1e-4)


def test_written_masks_are_predicted_in_one_pass_and_others_are_told(model_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.fasta"
    source.write_text(">a\nMK<mask>LV<mask>A\n>plain\nMKL\n>a\n<mask>\n")
    account = run(config(model_folder, source, tmp_path / "x.json", top_k=20))
    rows = json.loads((tmp_path / "x.json").read_text())
    assert [(row["identifier"], row["position_1based"]) for row in rows[::20]] == [("a", 3), ("a", 6), ("a#2", 1)]
    assert {row["wild_type"] for row in rows} == {"<mask>"}
    assert sum(row["probability"] for row in rows[:20]) == pytest.approx(1, rel=1e-5)
    expected = expected_residues(model_folder, "MK<mask>LV<mask>A", 6)
    for row in rows[20:40]:
        assert row["probability"] == pytest.approx(expected[row["residue"]], rel=1e-4)
    assert account["without anything to predict"] == 1
    assert "plain\tno <mask> to predict" in (tmp_path / "x.skipped.tsv").read_text()


def test_together_masks_all_at_once(model_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.fasta"
    source.write_text(">a\nMKTLV\n")
    run(config(model_folder, source, tmp_path / "x.tsv", positions=[2, 4], together=True, top_k=1))
    expected = expected_residues(model_folder, "M<mask>T<mask>V", 2)
    [first, _] = rows_of(tmp_path / "x.tsv")
    assert float(first["probability"]) == pytest.approx(max(expected.values()), rel=1e-4)


def test_pseudo_perplexity_is_the_mean_over_single_masks(model_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.fasta"
    source.write_text(">a\nMKXT\n>b\nW\n")
    run(config(model_folder, source, tmp_path / "x.parquet", pseudo_perplexity=True))
    import pyarrow.parquet as pq

    a, b = pq.read_table(tmp_path / "x.parquet").to_pylist()
    # X is no residue that could be right or wrong: it is not scored.
    likelihoods = [
        expected_residues(model_folder, text, position)[residue]
        for text, position, residue in (("<mask>KXT", 1, "M"), ("M<mask>XT", 2, "K"), ("MKX<mask>", 4, "T"))
    ]
    assert (a["length"], a["n_scored"], b["n_scored"]) == (4, 3, 1)
    assert a["pseudo_perplexity"] == pytest.approx(np.exp(-np.mean(np.log(likelihoods))), rel=1e-4)


def test_every_position_and_a_picture_of_one_protein(model_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.fasta"
    source.write_text(">a\nMKTAYIAKQRQISFVK\n")
    picture = tmp_path / "map.png"
    run(config(model_folder, source, tmp_path / "x.tsv", all_positions=True, top_k=1, plot=str(picture)))
    assert [row["position_1based"] for row in rows_of(tmp_path / "x.tsv")] == [str(i) for i in range(1, 17)]
    assert "".join(row["wild_type"] for row in rows_of(tmp_path / "x.tsv")) == "MKTAYIAKQRQISFVK"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_positions_beyond_a_sequence(model_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.fasta"
    source.write_text(">a\nMKT\n")
    with pytest.raises(SequenceError, match=r"in\.fasta:1: sequence 'a' has 3 residues, so --positions 9 lies beyond"):
        run(config(model_folder, source, tmp_path / "x.tsv", positions=[2, 9]))
    assert not (tmp_path / "x.tsv").exists()
    source.write_text(">a\nMKT\n>b\nMKTAYIAKQR\n")
    account = run(config(model_folder, source, tmp_path / "x.tsv", positions=[2, 9], top_k=1))
    assert [(row["identifier"], row["position_1based"]) for row in rows_of(tmp_path / "x.tsv")] == [
        ("a", "2"), ("b", "2"), ("b", "9"),
    ]  # fmt: skip
    assert account["with positions beyond their end"] == 1
    assert "a\tposition beyond the sequence: 9 of 3" in (tmp_path / "x.skipped.tsv").read_text()


def test_what_cannot_be_done_is_refused_before_computing(model_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.fasta"
    source.write_text(">a\nMKT\n>b\nMKT\n")
    output = tmp_path / "x.tsv"
    with pytest.raises(SequenceError, match="no <mask> in any of 2 sequences"):
        run(config(model_folder, source, output))
    with pytest.raises(ConfigError, match="--plot draws one protein, but 2 sequences"):
        run(config(model_folder, source, output, all_positions=True, plot=str(tmp_path / "x.png")))
    with pytest.raises(ConfigError, match="--positions and --all-positions exclude each other"):
        config(model_folder, source, output, all_positions=True, positions=[1])
    with pytest.raises(ConfigError, match="--together needs --positions"):
        config(model_folder, source, output, together=True)
    with pytest.raises(ConfigError, match="use an ending of"):
        run(config(model_folder, source, tmp_path / "x.xlsx", positions=[1]))
    output.write_text("old")
    with pytest.raises(OutputError, match="exists; replace it with --overwrite"):
        run(config(model_folder, source, output, positions=[1]))
    assert output.read_text() == "old"
    run(config(model_folder, source, output, positions=[1], overwrite=True))
    assert len(rows_of(output)) == 10
