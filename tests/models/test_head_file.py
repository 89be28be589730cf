"""Head files: written and read back, and told apart from what they are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.errors import CheckpointError
from protlat.models import Encoder, ModelConfig
from protlat.models.head_file import HEAD_FILE, HeadFile, has_head, read_head, read_head_weights, write_head


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Encoder(ModelConfig(d_model=16, n_layers=1, head_dim=8), PROTEIN).save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def head(kind: str = "residue_class") -> HeadFile:
    return HeadFile.parse(
        {"task": "toy", "type": kind, "classes": ["a", "b"], "mode": "head", "head": {"kind": "linear"}}
    )


def test_read_back(folder: Path) -> None:
    weights = {"w": torch.arange(3.0), "same": torch.arange(3.0)[1:]}
    assert not has_head(folder)
    write_head(folder, head(), weights)
    assert has_head(folder)
    where, found = read_head(folder, "labels")
    assert (where, found) == (folder, head())
    assert read_head_weights(folder)["same"].tolist() == [1, 2]


def test_faults_are_one_line(folder: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"a model without a head \(head\.json\); make one with: protlat finetune TASK"
    ):
        read_head(folder)
    write_head(folder, head("pair"), {})
    with pytest.raises(CheckpointError, match="its head predicts contacts, not labels; use: protlat predict contacts"):
        read_head(folder, "labels")
    write_head(folder, head(), {})
    with pytest.raises(CheckpointError, match="predicts residue_class, not contacts; use: protlat predict -m"):
        read_head(folder, "pair")
    values = json.loads((folder / HEAD_FILE).read_text())
    for text, message in (
        (json.dumps({**values, "format": 99}), "format 99, this protlat reads up to 1"),
        (json.dumps({**values, "mode": "magic"}), "mode: Input should be"),
        ("{", "cannot be read as a head"),
        ("[]", "cannot be read as a head"),
    ):
        (folder / HEAD_FILE).write_text(text)
        with pytest.raises(CheckpointError, match=message):
            read_head(folder)
    (folder / "head.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        read_head_weights(folder)
