"""Options of `protlat generate`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from protlat.alphabet import PROTEIN
from protlat.cli.generate import generate, generate_values
from protlat.cli.main import main
from protlat.models import CausalLM, MaskedLM, ModelConfig
from protlat.pipelines.generate import GenerateConfig


def test_help_shows_the_sampling_options() -> None:
    text = CliRunner().invoke(generate, ["--help"]).output
    for part in ("--temperature", "--top-k", "--top-p", "--repetition-penalty", "--stop", "--num-samples", "--seed"):
        assert part in text


def test_written_config_is_what_the_defaults_are(tmp_path: Path) -> None:
    path = tmp_path / "generate.yaml"
    assert CliRunner().invoke(generate, ["--write-config", str(path)]).exit_code == 0
    assert GenerateConfig.load(path) == GenerateConfig()


def test_options_become_settings() -> None:
    given = dict.fromkeys(
        ("model", "output", "prompt_file", "document", "max_new_tokens", "num_samples", "temperature", "top_k", "top_p",
         "repetition_penalty", "batch_size", "seed", "format_name", "overwrite", "threads")
    )  # fmt: skip
    given |= {"stop": ("x", "y"), "device": "auto", "dtype": "float32", "temperature": 0.0, "top_k": None}
    values = generate_values(("MKV",), given)
    config = GenerateConfig.load(**{key: value for key, value in values.items()})
    assert config.prompts == ("MKV",)
    assert config.generation.stop == ("x", "y")
    assert config.generation.temperature == 0
    assert (config.device, config.dtype) == ("auto", "float32")
    assert GenerateConfig.load(**generate_values(("-",), given)).prompt_file == "-"


def test_a_run_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ModelConfig.parse({"d_model": 16, "n_layers": 1, "head_dim": 8, "causal": True, "local_conv": None})
    CausalLM(settings, PROTEIN).save_pretrained(tmp_path / "model")
    MaskedLM(settings.model_copy(update={"causal": False}), PROTEIN).save_pretrained(tmp_path / "masked")
    arguments = ["generate", "MKV", "-m", str(tmp_path / "model"), "--max-new-tokens", "5", "--dtype", "float32"]
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "-o", str(tmp_path / "x.fasta")])
    assert caught.value.code == 0
    assert (tmp_path / "x.fasta").read_text().startswith(">prompt1 prompt=3 n_tokens=")
    assert "tokens generated" in capsys.readouterr().err
    for wrong, message in (
        (["generate", "-m", str(tmp_path / "masked")], "is not causal: it fills in <mask>"),
        ([*arguments, "--temperature", "0", "--top-p", "0.5"], "top_k and top_p cannot act"),
        (["generate", "MKV"], "model (-m): nothing given"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(wrong)
        assert caught.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
