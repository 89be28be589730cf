import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from protlat.cli.main import cli, main

MODEL = "d_model: 16\nn_layers: 1\nhead_dim: 8\nattention: [{kind: efficient, n_heads: 2}]\nlocal_conv: null\n"


def test_roofline_prints_a_row_for_each_mode_and_writes_the_same_figures(tmp_path: Path) -> None:
    model, output = tmp_path / "model.yaml", tmp_path / "out.json"
    model.write_text(MODEL)
    options = ["--set", "repeats=1", "--set", "n_sequences=2", "--set", "length=16", "-o", str(output)]
    done = CliRunner().invoke(
        cli, ["bench", "roofline", str(model), "--device", "cpu", *options], catch_exceptions=False
    )
    assert done.exit_code == 0
    rows = json.loads(output.read_text())["rows"]
    assert [row["mode"] for row in rows] == ["inference", "training"]
    for row in rows:
        assert f"{row['tokens_per_s']:,.0f}" in done.stdout
        assert row["floor_tokens_per_s"] <= row["product_floor_tokens_per_s"]
    # A backward pass makes two products for each of the forward pass, and the read-out runs only in training.
    assert rows[1]["mflop_per_token"] > 3 * rows[0]["mflop_per_token"]


def test_an_unknown_preset_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "roofline", "smal"])
    assert stop.value.code == 2
    assert "did you mean 'small'?" in capsys.readouterr().err
