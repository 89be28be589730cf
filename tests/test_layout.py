"""What is installed, and that every YAML file of the package builds."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from protlat.config import read_yaml
from protlat.models import ModelConfig

ROOT = Path(__file__).parent.parent
YAMLS = sorted(path.relative_to(ROOT) for path in (ROOT / "configs").rglob("*.yaml"))


@pytest.mark.parametrize("path", YAMLS, ids=str)
def test_every_yaml_loads_and_builds(path: Path) -> None:
    builders = {
        "model": lambda values: ModelConfig.parse(values),
        "prep": lambda values: importlib.import_module("protlat.data_prep.config").PrepConfig.parse(values),
        "pretrain": lambda _: importlib.import_module("protlat.pipelines.pretrain").load_config(ROOT / path),
        "ablate": lambda _: importlib.import_module("protlat.pipelines.ablate_config").load_ablation(ROOT / path),
        "task": lambda values: importlib.import_module("protlat.tasks.config").TaskConfig.parse(values),
        "finetune": lambda values: importlib.import_module("protlat.pipelines.finetune").FinetuneConfig.parse(values),
        "evaluate": lambda values: importlib.import_module("protlat.pipelines.evaluate").EvaluateConfig.parse(values),
        "embed": lambda values: importlib.import_module("protlat.pipelines.embed").EmbedConfig.parse(values),
        "generate": lambda values: importlib.import_module("protlat.pipelines.generate").GenerateConfig.parse(values),
        "predict": lambda values: importlib.import_module("protlat.pipelines.predict").PredictMaskedConfig.parse(
            values
        ),
    }
    assert builders[path.parts[1]](read_yaml(ROOT / path)) is not None


def test_configs_and_demo_data_are_installed() -> None:
    installed = resources.files("protlat.configs")
    for path in YAMLS:
        assert installed.joinpath(*path.parts[1:]).is_file()
    assert resources.files("protlat").joinpath("demo_data", "proteins.fasta").is_file()


@pytest.mark.parametrize("folder", ["pipelines", "data_prep"])
def test_folders_refuse_their_bare_names(folder: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"import this folder as protlat.{folder}" in done.stderr


def test_importing_protlat_imports_nothing_heavy() -> None:
    code = "import sys, protlat; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_pin_is_exact_and_torch_is_the_stated_one() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in lines)
    assert "torch==2.13.0" in lines
