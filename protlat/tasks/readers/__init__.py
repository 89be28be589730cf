"""Readers of labelled files: each is a config with a ``kind`` and a method `read`; the union is the registry."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protlat.tasks.readers.base import RawSet, ReadContext, SourceConfig
from protlat.tasks.readers.fasta import FastaSource
from protlat.tasks.readers.marked import MarkedSource
from protlat.tasks.readers.structures import StructuresSource
from protlat.tasks.readers.table import TableSource
from protlat.tasks.readers.three_line import ThreeLineSource
from protlat.tasks.readers.variants import VariantsSource

AnySource = Annotated[
    FastaSource | MarkedSource | StructuresSource | TableSource | ThreeLineSource | VariantsSource,
    Field(discriminator="kind"),
]

__all__ = [
    "AnySource",
    "FastaSource",
    "MarkedSource",
    "RawSet",
    "ReadContext",
    "SourceConfig",
    "StructuresSource",
    "TableSource",
    "ThreeLineSource",
    "VariantsSource",
]
