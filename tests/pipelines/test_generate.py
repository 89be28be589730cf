"""`protlat generate` from prompts to files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from protlat.alphabet import BYTES, PROTEIN
from protlat.errors import CheckpointError, ConfigError, OutputError, SequenceError
from protlat.models import CausalLM, MaskedLM, ModelConfig
from protlat.pipelines.generate import GenerateConfig, run

SMALL = {"d_model": 16, "n_layers": 1, "head_dim": 8, "causal": True, "local_conv": None}
CONFIGS = Path(__file__).parents[2] / "configs" / "generate"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    CausalLM(ModelConfig.parse(SMALL), PROTEIN).save_pretrained(folder / "protein")
    CausalLM(ModelConfig.parse(SMALL), BYTES).save_pretrained(folder / "bytes")
    MaskedLM(ModelConfig.parse({**SMALL, "causal": False}), PROTEIN).save_pretrained(folder / "masked")
    return folder


def config(models: Path, name: str = "protein", **values: Any) -> GenerateConfig:
    generation = {"max_new_tokens": 12, **values.pop("generation", {})}
    return GenerateConfig.parse({"model": str(models / name), "dtype": "float32", "generation": generation, **values})


def fasta(path: Path) -> dict[str, str]:
    records = path.read_text().split(">")[1:]
    return {record.split()[0]: "".join(record.splitlines()[1:]) for record in records}


def test_fasta_of_several_samples(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.fasta"
    rows = run(config(models, prompts=["MKV", "ACDEF"], output=str(out), generation={"num_samples": 3}))
    found = fasta(out)
    assert list(found) == [f"prompt{p}_{s}" for p in (1, 2) for s in (1, 2, 3)]
    assert all(text.startswith("MKV" if name.startswith("prompt1") else "ACDEF") for name, text in found.items())
    assert set("".join(found.values())) <= set("ACDEFGHIKLMNPQRSTVWY")
    assert rows["prompts"] == 2
    assert rows["tokens of prompts"] == 8
    assert rows["sequences written"] == 6
    assert sum(rows[f"ended by {x}"] for x in ("the model", "a stop text", "max_new_tokens")) == 6
    assert rows["tokens generated"] == sum(
        int(h.split("n_tokens=")[1].split()[0]) for h in out.read_text().split(">")[1:]
    )
    assert "nats" in rows["mean loss of a token"]
    with pytest.raises(OutputError, match="exists; replace it with --overwrite"):
        run(config(models, output=str(out)))
    run(config(models, output=str(out), overwrite=True))
    assert list(fasta(out)) == ["generated"]


def test_prompts_from_fasta_and_from_lines(models: Path, tmp_path: Path) -> None:
    (tmp_path / "p.fasta").write_text(">one first\nMK\nV\n>two\nACDX\n")
    run(config(models, prompt_file=str(tmp_path / "p.fasta"), output=str(tmp_path / "a.jsonl")))
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [(row["id"], row["prompt"]) for row in rows] == [("one", "MKV"), ("two", "ACDX")]
    assert {"text", "n_tokens", "stopped_by", "log_likelihood"} <= set(rows[0])
    (tmp_path / "p.txt").write_bytes(b"MKV\r\n\nACD\n")
    run(config(models, prompt_file=str(tmp_path / "p.txt"), output=str(tmp_path / "b.jsonl")))
    rows = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [(row["id"], row["prompt"]) for row in rows] == [("p.txt:1", "MKV"), ("p.txt:3", "ACD")]


def test_a_whole_file_of_bytes_is_a_prompt(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "First line,\nzweite Zeile: ä\n"
    (tmp_path / "start.txt").write_text(text)
    run(
        config(
            models, "bytes", prompt_file=str(tmp_path / "start.txt"), document="file", output=str(tmp_path / "o.txt")
        )
    )
    assert (tmp_path / "o.txt").read_text().startswith(text)
    run(config(models, "bytes", prompts=["a", "b"]))
    assert capsys.readouterr().out.count("==> prompt") == 2


def test_standard_input_and_output(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Input:
        buffer = io.BytesIO(b"MKV\nACD\n")

    monkeypatch.setattr("sys.stdin", Input())
    run(config(models, prompt_file="-"))
    out = capsys.readouterr().out
    assert out.startswith(">stdin:1 prompt=3 n_tokens=")
    assert ">stdin:2 " in out


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"name": "masked"}, ConfigError, r"masked: this model is not causal: it fills in <mask>"),
        ({"name": "nowhere"}, CheckpointError, "no model here"),
        ({"output": "x.pdf"}, ConfigError, r"x\.pdf: its ending is none of \.fasta"),
        ({"name": "bytes", "output": "x.fasta"}, ConfigError, "fasta holds proteins, but the model writes bytes"),
        ({"prompts": ["MKV", "M1"]}, SequenceError, "prompt 'M1': position 2 is <unk>"),
        ({"prompt_file": "none.txt"}, SequenceError, r"none\.txt: no such file"),
        ({"prompts": ["M"], "prompt_file": "x.txt"}, ConfigError, "as words or as a file"),
        ({"document": "file"}, ConfigError, "there is none; give one with --prompts"),
        ({"generation": {"temperature": 0, "top_k": 2}}, ConfigError, "top_k and top_p cannot act"),
    ],
)
def test_what_is_refused(models: Path, values: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(config(models, values.pop("name", "protein"), **values))


def test_an_empty_prompt_file(models: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("\n\n")
    with pytest.raises(SequenceError, match="no prompt in it"):
        run(config(models, prompt_file=str(tmp_path / "p.txt")))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_loads(path: Path) -> None:
    assert GenerateConfig.load(path).generation != GenerateConfig().generation
