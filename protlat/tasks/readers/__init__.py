"""Readers of labelled files: each is a config with a ``kind`` and a method `read`; the union is the registry."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protlat.tasks.readers.base import RawSet, SourceConfig
from protlat.tasks.readers.fasta import FastaSource
from protlat.tasks.readers.table import TableSource

AnySource = Annotated[FastaSource | TableSource, Field(discriminator="kind")]

__all__ = ["AnySource", "FastaSource", "RawSet", "SourceConfig", "TableSource"]
