"""Every YAML of embed and predict loads into its config."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from protlat.config import Config
from protlat.pipelines.embed import EmbedConfig
from protlat.pipelines.predict import PredictMaskedConfig

CASES = [
    (Path(str(file)), kind)
    for folder, kind in (("embed", EmbedConfig), ("predict", PredictMaskedConfig))
    for file in resources.files("protlat.configs").joinpath(folder).iterdir()
    if file.name.endswith(".yaml")
]


@pytest.mark.parametrize(("path", "kind"), CASES, ids=lambda value: getattr(value, "name", ""))
def test_yaml_loads(path: Path, kind: type[Config]) -> None:
    assert isinstance(kind.load(path), kind)
