"""Contact heads from end to end: training, resuming, predicting, faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from protlat.alphabet import PROTEIN, STANDARD_RESIDUES
from protlat.cli.predict import predict
from protlat.data.chains import Chain
from protlat.errors import CheckpointError, ConfigError, OutputError, ProtlatError, SequenceError
from protlat.models import MaskedLM, ModelConfig
from protlat.models.head_file import read_head, read_head_weights
from protlat.pipelines.finetune_config import FinetuneConfig
from protlat.pipelines.finetune_pairs import run as run_pairs
from protlat.pipelines.predict_contacts import PredictContactsConfig
from protlat.pipelines.predict_contacts import run as run_predict
from protlat.tasks.load import load_task

STRUCTURES = Path(__file__).parents[1] / "data_files" / "structures"
PAIR: dict[str, Any] = {
    "crop": 16,
    "crops": 2,
    "head": {"d_hidden": 16, "rank": 8, "channels": 8, "heads": 1, "head_dim": 8, "dilations": [1, 2], "dropout": 0.1},
}


def hairpin(name: str, n_strand: int, rng: np.random.Generator) -> Chain:
    """Two strands side by side: residue i touches residue n - 1 - i. Strands are V and T, the turn is G."""
    up = np.stack([3.3 * np.arange(n_strand), np.zeros(n_strand), np.zeros(n_strand)], axis=1)
    turn = np.array([[3.3 * n_strand + 2, 1.5, 0], [3.3 * n_strand + 2, 3.5, 0]])
    xyz = np.concatenate([up, turn, up[::-1] + np.array([0, 5.0, 0])]).astype(np.float32)
    letters = rng.choice(list("VT"), 2 * n_strand)
    residues = "".join([*letters[:n_strand], "G", "G", *letters[n_strand:]])
    return Chain(name, residues, xyz, xyz, (), np.arange(len(xyz)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without training, and a task of hairpins."""
    place = tmp_path_factory.mktemp("contacts")
    torch.manual_seed(0)
    config = ModelConfig.parse({"d_model": 16, "n_layers": 1, "head_dim": 8})
    MaskedLM(config, PROTEIN).save_pretrained(place / "model")
    rng = np.random.default_rng(1)
    for split, n_chains in (("train", 12), ("valid", 3), ("test", 3)):
        chains = [hairpin(f"{split}{i}", int(rng.integers(10, 18)), rng) for i in range(n_chains)]
        (place / f"{split}.jsonl").write_text("".join(chain.to_line() + "\n" for chain in chains))
    sources = "".join(f"  - {{kind: structures, path: {s}.jsonl, split: {s}}}\n" for s in ("train", "valid", "test"))
    (place / "hairpins.yaml").write_text(f"name: hairpins\ntype: pair\nmetric: precision_short_l5\nsources:\n{sources}")
    return place


def settings(folder: Path, output: Path, **more: Any) -> FinetuneConfig:
    values = {
        "task": str(folder / "hairpins.yaml"), "model": str(folder / "model"), "output": str(output), "pair": PAIR,
        "cache": str(folder / "cache"), "limits": {"max_steps": 8, "evaluate_every": 4}, "n_bootstrap": 20,
        "engine": {"device": "cpu"}, **more,
    }  # fmt: skip
    return FinetuneConfig.parse(values)


def train(folder: Path, output: Path, **more: Any) -> dict[str, Any]:
    config = settings(folder, output, **more)
    return run_pairs(config, load_task(config.task, config.data))


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """A head trained until it knows hairpins, with both baselines beside it."""
    output = folder / "trained"
    pair = {**PAIR, "baselines": ["one_hot", "convolution"]}
    train(folder, output, pair=pair, limits={"max_steps": 60, "evaluate_every": 20}, optim={"lr": 1e-2})
    return output


def test_a_head_learns_and_is_reported_beside_its_baselines(trained: Path) -> None:
    report = read_head(trained, "pair")[1].report
    own, base = (
        found["test"]["precision_short_l5"]["value"] for found in (report["scores"], report["baseline"]["scores"])
    )
    assert own > base + 0.2
    assert set(report["further baselines"]) == {"one_hot", "convolution"}
    for found in report["further baselines"].values():
        assert found["training"]["steps"] > 0
        assert 0 <= found["scores"]["test"]["precision_short_l5"]["value"] <= 1
    assert report["data"]["train"]["contacts"] > 0
    assert not (trained / "checkpoints").exists()
    assert (trained / "README.md").read_text().count("precision_short_l5") >= 2


def test_info_knows_the_folder(trained: Path) -> None:
    from protlat.models.head_file import describe_fine_tuned

    facts = describe_fine_tuned(trained)
    assert facts["predicts"] == "pair"
    assert facts["head"]["kind"] == "contact"


def test_a_stopped_run_goes_on_to_the_same_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from protlat.training.label_loop import LabelLoop

    train(folder, tmp_path / "whole")
    step = LabelLoop._step
    monkeypatch.setattr(
        LabelLoop,
        "_step",
        lambda loop, *a: (_ for _ in ()).throw(KeyboardInterrupt) if loop.state.step == 6 else step(loop, *a),
    )
    with pytest.raises(KeyboardInterrupt):
        train(folder, tmp_path / "halves")
    monkeypatch.undo()
    assert not (tmp_path / "halves" / "head.json").exists()
    train(folder, tmp_path / "halves", resume=True)
    whole, halves = (read_head_weights(tmp_path / name) for name in ("whole", "halves"))
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
    with pytest.raises(OutputError, match="already holds a run"):
        train(folder, tmp_path / "whole")
    # A complete run is left alone.
    before = (tmp_path / "whole" / "head.json").read_bytes()
    assert "steps" in train(folder, tmp_path / "whole", resume=True)
    assert (tmp_path / "whole" / "head.json").read_bytes() == before


def test_a_resumed_run_cannot_become_another(folder: Path, tmp_path: Path) -> None:
    train(folder, tmp_path / "run", limits={"max_steps": 2})
    (tmp_path / "run" / "head.json").unlink()
    with pytest.raises(ConfigError, match="pair differs from the run's"):
        train(folder, tmp_path / "run", resume=True, pair={**PAIR, "crop": 12})


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"mode": "full"}, ConfigError, "mode full: a task of pairs has mode head only"),
        ({"pair": {"crop": 4}}, ConfigError, "pair: crop"),
        ({"pair": {"crob": 16}}, ConfigError, "did you mean 'crop'"),
        ({"layer": 7}, ConfigError, "layer 7: this model has layers 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    folder: Path, tmp_path: Path, more: dict[str, Any], error: type[ProtlatError], message: str
) -> None:
    with pytest.raises(error, match=message):
        train(folder, tmp_path / "run", **more)
    assert not (tmp_path / "run").exists()


def test_a_training_set_without_a_contact_is_refused(folder: Path, tmp_path: Path) -> None:
    rod = Chain("rod", "A" * 20, *[np.arange(60, dtype=np.float32).reshape(20, 3) * 3] * 2, (), np.arange(20))
    (tmp_path / "train.jsonl").write_text(rod.to_line() + "\n")
    (tmp_path / "t.yaml").write_text(
        "name: t\ntype: pair\nvalid: null\nsources:\n  - {kind: structures, path: train.jsonl, split: train}\n"
    )
    config = settings(folder, tmp_path / "run", task=str(tmp_path / "t.yaml"))
    with pytest.raises(SequenceError, match="no contact in the training set"):
        run_pairs(config, load_task(config.task))


def fasta(path: Path, **sequences: str) -> str:
    path.write_text("".join(f">{name}\n{residues}\n" for name, residues in sequences.items()))
    return str(path)


def predicted(trained: Path, inputs: str, output: Path, **more: Any) -> dict[str, Any]:
    config = PredictContactsConfig.parse(
        {"inputs": [inputs], "model": str(trained), "output": str(output), "device": "cpu", "dtype": "float32", **more}
    )
    return run_predict(config)


def test_maps_do_not_depend_on_what_else_is_predicted(trained: Path, tmp_path: Path) -> None:
    one, two = "VTVTVVTVTVTGGVTVTVTTVTVT", "".join(STANDARD_RESIDUES) * 3
    predicted(trained, fasta(tmp_path / "one.fa", one=one), tmp_path / "one.npz")
    predicted(trained, fasta(tmp_path / "both.fa", two=two, one=one), tmp_path / "both.npz")
    with np.load(tmp_path / "one.npz") as alone, np.load(tmp_path / "both.npz") as both:
        assert both.files == ["two", "one"]
        np.testing.assert_allclose(alone["one"], both["one"], atol=1e-5)  # float32
        np.testing.assert_array_equal(both["two"], both["two"].T)
        assert both["two"].shape == (60, 60)


def test_long_proteins_have_their_top_pairs(trained: Path, tmp_path: Path) -> None:
    source = fasta(tmp_path / "in.fa", short="VTVTVVTVTVTGG", long="VTVTVVTVTVTGGVTVTVTTVTVT" * 3)
    predicted(trained, source, tmp_path / "out.npz", dense_max=20, tile=32, top=1.5)
    with np.load(tmp_path / "out.npz") as found:
        assert sorted(found.files) == ["pairs/long", "probability/long", "short"]
        pairs, probability = found["pairs/long"], found["probability/long"]
    assert len(pairs) == int(1.5 * 72)
    assert (pairs[:, 1] - pairs[:, 0]).min() >= 6
    assert (np.diff(probability) <= 0).all()
    predicted(trained, source, tmp_path / "whole.npz", dense_max=100, tile=100)
    with np.load(tmp_path / "whole.npz") as found:
        np.testing.assert_allclose(found["long"][pairs[:, 0], pairs[:, 1]], probability, atol=1e-5)


def test_tables_beside_the_truth(trained: Path, tmp_path: Path) -> None:
    residues = "MDIRQGPKEPFRDYVDRFYKTLRAEQASQEVKNWMTETLLVQNANPDCKTILKALGPGATLEEMMTACQG"
    source = fasta(tmp_path / "in.fa", one=f"AA{residues}AA")
    account = predicted(
        trained,
        source,
        tmp_path / "out.tsv",
        structure=str(STRUCTURES / "1a8o_cut.cif.gz"),
        plot=str(tmp_path / "map.png"),
    )
    assert account["structure"] == "chain A, 70 of 74 residues known"
    assert "precision at L, long range" in account
    header, *rows = (line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines())
    assert header[-1] == "distance_angstrom"
    assert len(rows) == 148
    for row in rows:
        assert f"AA{residues}AA"[int(row[1]) - 1] == row[3]
        assert int(row[2]) - int(row[1]) == int(row[5]) >= 6
    assert (tmp_path / "map.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("sequences", "more", "message"),
    [
        ({"one": "ACDEFGHIKL"}, {"structure": "1a8o.pdb.gz"}, "does not fit the sequence 'one'"),
        ({"one": "ACDEFGHIKL"}, {"structure": "1a8o.pdb.gz", "chain": "Q"}, "no chain Q; its chains: A"),
        ({"one": "ACDEFGHIKL"}, {"structure": "README.md"}, "neither PDB nor mmCIF"),
        (
            {"one": "ACDEF", "two": "ACDEF"},
            {"structure": "1a8o.pdb.gz"},
            "--structure is for one protein, but there are 2",
        ),
        ({"one": "ACDEF"}, {"chain": "A"}, "chain: names a chain of --structure"),
        ({}, {}, "no sequence"),
    ],
)
def test_faults_leave_one_line_and_no_output(
    trained: Path, tmp_path: Path, sequences: dict[str, str], more: dict[str, str], message: str
) -> None:
    if "structure" in more:
        more = {**more, "structure": str(STRUCTURES / more["structure"])}
    with pytest.raises(ProtlatError, match=message) as caught:
        predicted(trained, fasta(tmp_path / "in.fa", **sequences), tmp_path / "out.npz", **more)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.npz").exists()


def test_a_model_without_a_contact_head_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a model without a head"):
        predicted(folder / "model", fasta(tmp_path / "in.fa", one="ACDEF"), tmp_path / "out.npz")


def test_the_command_line(trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    source = fasta(tmp_path / "in.fa", one="VTVTVVTVTVTGGVTVTVT")
    done = CliRunner().invoke(predict, ["contacts", source, "-m", str(trained), "-o", str(output), "--top", "0.5"])
    assert done.exit_code == 0, done.output
    assert len(json.loads(output.read_text())) == 9
    bad = CliRunner().invoke(predict, ["contacts", source, "-m", str(trained), "-o", str(tmp_path / "out.csv")])
    assert isinstance(bad.exception, ConfigError)
