"""Axial positions; the others are tested with the layers."""

from __future__ import annotations

import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.errors import SequenceError
from protlat.models import Encoder, ModelConfig
from protlat.nn.positions import AxialConfig
from protlat.ops.segments import Segments


def test_axial_positions_are_a_row_and_a_column(rng: torch.Generator) -> None:
    positions = AxialConfig(max_length=10, width=4).build(6)
    assert sum(p.numel() for p in positions.parameters()) == (3 + 4) * 6
    x = torch.randn(15, 6, generator=rng)
    out = positions(x, Segments([10, 5], offsets=[0, 3]))
    rows, columns = positions.rows.weight, positions.columns.weight
    for token, position in enumerate([*range(10), *range(3, 8)]):
        torch.testing.assert_close(out[token], x[token] + rows[position // 4] + columns[position % 4])


def test_beyond_the_table_is_refused(rng: torch.Generator) -> None:
    encoder = Encoder(ModelConfig.parse({"positions": {"kind": "axial", "max_length": 33, "width": 5}}), PROTEIN)
    tokens = torch.randint(4, 24, (34,), generator=rng)
    assert encoder.config.max_length == 33
    encoder(tokens[:33], Segments([33]))
    with pytest.raises(SequenceError, match="34 tokens, but this model has axial positions for at most 33"):
        encoder(tokens, Segments([34]))


def test_limits_of_each_kind() -> None:
    limits = {
        kind: ModelConfig.parse({"positions": {"kind": kind, **more}}).max_length
        for kind, more in (
            ("none", {}),
            ("sinusoidal", {}),
            ("learned", {"max_length": 7}),
            ("axial", {"max_length": 9}),
        )
    }
    assert limits == {"none": None, "sinusoidal": None, "learned": 7, "axial": 9}
