"""Near neighbours across splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protlat.alphabet import Alphabet
from protlat.data.shards import SplitInfo


def leak_report(output: Path, splits: dict[str, SplitInfo], alphabet: Alphabet, n_sample: int) -> dict[str, Any]:
    """Share of valid and test with a near neighbour in train."""
    return {}
