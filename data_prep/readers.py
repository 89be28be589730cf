"""Sources to raw work: what the main process reads, and what a worker turns into a block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from protlat.data.compression import ByteSource
from protlat.data.fasta import RawBlock, cut_blocks, parse_block
from protlat.data.policies import warn_if_nucleotides
from protlat.data.records import RecordBlock, SequenceReport

from .config import PrepConfig
from .sources import Source


@dataclass(frozen=True)
class Work:
    """One block to be made into a piece.

    Attributes
    ----------
    source, block : int
        Index of the source and number of the block in it.
    path : str
    raw : RawBlock or RecordBlock
        Bytes of a FASTA file, or records of another format.
    """

    source: int
    block: int
    path: str
    raw: RawBlock | RecordBlock


def read_source(index: int, source: Source, stream: ByteSource, config: PrepConfig) -> Iterator[Work]:
    """The blocks of one source, in order.

    Raises
    ------
    SequenceError
        The source cannot be read as its format.
    """
    if source.format == "fasta":
        for raw in cut_blocks(stream.chunks(), source.path, config.block_bytes):
            yield Work(index, raw.index, source.path, raw)
    else:
        from .documents import read_documents
        from .rich_formats import read_rich

        read = read_documents if source.format in ("text", "jsonl") else read_rich
        for number, block in enumerate(read(source, stream, config)):
            yield Work(index, number, source.path, block)


def block_of(work: Work, report: SequenceReport) -> RecordBlock:
    """The records of a piece of work."""
    if isinstance(work.raw, RecordBlock):
        return work.raw
    block = parse_block(work.raw, work.path, report)
    if work.block == 0:
        warn_if_nucleotides(block, report)
    return block
