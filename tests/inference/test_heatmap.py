from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protlat.alphabet import STANDARD_RESIDUES
from protlat.errors import ConfigError
from protlat.inference.heatmap import MAX_POSITIONS, draw_heatmap


@pytest.mark.parametrize("n_positions", [1, 30, 200])
def test_a_png_grows_by_panels(tmp_path: Path, n_positions: int) -> None:
    import matplotlib.image

    table = np.random.default_rng(0).dirichlet(np.ones(20), n_positions)
    letters = ["<mask>", *("ACDEFGHIKLMNPQRSTVWY" * 10)][:n_positions]
    draw_heatmap(tmp_path / "x.png", "a", range(1, n_positions + 1), letters, table, list(STANDARD_RESIDUES))
    picture = matplotlib.image.imread(tmp_path / "x.png")
    assert picture.shape[0] >= 400 * -(-n_positions // 80)


def test_too_many_positions_or_other_letters_are_refused(tmp_path: Path) -> None:
    n = MAX_POSITIONS + 1
    with pytest.raises(ConfigError, match="choose at most"):
        draw_heatmap(tmp_path / "x.png", "a", range(1, n + 1), ["A"] * n, np.ones((n, 20)), list(STANDARD_RESIDUES))
    with pytest.raises(ConfigError, match="draws the 20 residues"):
        draw_heatmap(tmp_path / "x.png", "a", [1], ["A"], np.ones((1, 2)), ["a", "b"])
    assert list(tmp_path.iterdir()) == []
