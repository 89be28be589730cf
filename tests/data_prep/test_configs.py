"""Every preset of prep loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from protlat.data_prep.config import PrepConfig

PRESETS = sorted((Path(__file__).parents[2] / "configs" / "prep").rglob("*.yaml"))


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_preset_loads(path: Path) -> None:
    config = PrepConfig.load(path)
    assert config != PrepConfig()
    assert PrepConfig.parse(config.to_plain()) == config
