from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from protlat.inference.windows import blend_weights, window_spans


@pytest.mark.parametrize("length", [1, 10, 11, 14, 15, 16, 17, 100])
@pytest.mark.parametrize(("window", "overlap"), [(10, 0), (10, 3), (10, 5)])
def test_windows_cover_every_residue_and_overlap_enough(length: int, window: int, overlap: int) -> None:
    spans = window_spans(length, window, overlap)
    assert spans[0][0] == 0
    assert spans[-1][1] == length
    assert all(b - a == min(window, length) for a, b in spans)
    assert all(before[1] - after[0] >= overlap for before, after in pairwise(spans))


def test_two_windows_cross_fade_linearly() -> None:
    weights = blend_weights(20, 4)
    share = weights[-4:] / (weights[-4:] + weights[:4])
    np.testing.assert_allclose(share, [0.8, 0.6, 0.4, 0.2], rtol=1e-6)
