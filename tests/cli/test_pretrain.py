"""Options of `protlat pretrain`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from protlat.cli.main import main
from protlat.cli.pretrain import pretrain
from protlat.pipelines.pretrain import PretrainConfig, load_config


def test_help_names_the_limits_and_the_exit_codes() -> None:
    text = CliRunner().invoke(pretrain, ["--help"]).output
    for part in ("--max-steps", "--resume", "--write-config", "--deepspeed-config", "130 or 143"):
        assert part in text
    assert "local_rank" not in text


def test_written_config_is_what_the_defaults_are(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    result = CliRunner().invoke(pretrain, ["--write-config", str(path)])
    assert result.exit_code == 0
    assert PretrainConfig.load(path) == PretrainConfig()
    assert "# Most tokens of one batch" in path.read_text()


def test_model_by_name_file_and_override(tmp_path: Path) -> None:
    assert load_config(model="small").model.d_model > load_config().model.d_model
    path = tmp_path / "run.yaml"
    path.write_text("model: small\noptim: {lr: 0.5}\n")
    config = load_config(path, ["model.n_layers=1", "optim.weight_decay=0"], limits__max_steps=7)
    assert config.model == load_config(model="small").model.model_copy(update={"n_layers": 1})
    assert (config.optim.lr, config.optim.weight_decay, config.limits.max_steps) == (0.5, 0, 7)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["shards"], 2, "Missing option '-o'"),
        (["-o", "run"], 2, "Missing argument 'SHARDS'"),
        (["shards", "-o", "run", "--model", "tinny"], 2, "did you mean 'tiny'?"),
        (["shards", "-o", "run", "--set", "optim.rl=1"], 2, "optim.rl: unknown key; did you mean 'lr'?"),
        (["shards", "-o", "run", "--set", "masking.mask=1"], 2, "mask + random + keep must be 1"),
        (["shards", "-o", "run", "--resume", "--overwrite"], 2, "exclude each other"),
        (["-o", "none", "--resume"], 1, "error: none: there is no run here to resume"),
        (["nowhere", "-o", "run"], 1, "nowhere: no such shard folder"),
    ],
)
def test_faults_are_one_line(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["pretrain", *arguments])
    assert caught.value.code == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
