"""`protlat prep`: the steps from raw files to shards, their account, and how a killed run goes on."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from protlat import __version__
from protlat.alphabet import Alphabet
from protlat.data.compression import ByteSource
from protlat.data.shards import MAX_TAGS, SPLITS, Manifest, SourceInfo, SplitInfo, read_manifest
from protlat.errors import ConfigError, SequenceError
from protlat.reporting import progress

from .account import account_of, empty_sources, report_of, summarize, write_skipped
from .config import PrepConfig
from .decisions import Decider
from .leaks import leak_report
from .lock import own_folder
from .pieces import PieceInfo, load_finished
from .plan import discard, has_own_work, is_finished, open_work
from .publish import STAGING_NAME, is_publishing, publish
from .readers import Work, read_source
from .sources import Source, choose_alphabet, find_sources
from .windows import Windowing
from .workers import choose_workers, make_pieces
from .write import ShardMaker, ShardPlan, split_info

log = logging.getLogger(__name__)


@dataclass
class _ReadSource:
    """What reading one source gave."""

    info: SourceInfo
    pieces: list[PieceInfo]


def run(config: PrepConfig, overwrite: bool = False) -> Manifest:
    """Make a shard folder, or finish one that was begun by the same command.

    Parameters
    ----------
    config : PrepConfig
    overwrite : bool
        Replace shards or unfinished work that lie in the output folder.

    Returns
    -------
    Manifest
        Also written to the folder.

    Raises
    ------
    ConfigError
        The settings contradict the inputs.
    SequenceError
        An input cannot be read, or breaks a policy that says ``error``.
    OutputError
        The folder holds something else, cannot be written, or another run is at work in it, or the disk is too small.
    """
    if not config.output:
        raise ConfigError("no output folder: name one with -o")
    start_s = time.monotonic()
    output = Path(config.output)
    sources = find_sources(config)
    alphabet = choose_alphabet(config, sources)
    with own_folder(output):
        return _run_alone(config, alphabet, sources, output, overwrite, start_s)


def _run_alone(
    config: PrepConfig, alphabet: Alphabet, sources: list[Source], output: Path, overwrite: bool, start_s: float
) -> Manifest:
    own = has_own_work(output, config, alphabet, sources)
    if not overwrite and not own and is_finished(output, config, alphabet, sources):
        log.info("%s: already finished by the same command; nothing to do", output)
        return read_manifest(output)
    work, resumed = open_work(output, config, alphabet, sources, overwrite)
    if resumed:
        log.info("%s: taking up the work of a stopped run", output)
    if is_publishing(work):
        publish(work, output)
        return read_manifest(output)
    try:
        manifest = _make(config, alphabet, sources, work)
    except (SequenceError, ConfigError):
        # The input or the command must change, and neither would match this work.
        discard(output)
        raise
    publish(work, output, manifest)
    summarize(manifest, config, output, time.monotonic() - start_s)
    return manifest


def _make(config: PrepConfig, alphabet: Alphabet, sources: list[Source], work: Path) -> Manifest:
    """The result in the work folder's staging place, and its manifest."""
    staging = work / STAGING_NAME
    read = _read_all(config, alphabet, sources, work / "pieces")
    pieces = [piece for source in read for piece in source.pieces]
    report = report_of(pieces)
    if not any(piece.n_rows for piece in pieces):
        told = ", ".join(f"{n:,} {reason}" for reason, n in report.reasons.items()) or "the input is empty"
        where = sources[0].path if len(sources) == 1 else f"{len(sources):,} files"
        raise SequenceError(f"{where}: no sequence is left to write: {report.n_records:,} read; {told}")
    tags = _tags_of(pieces)
    decider = Decider(config, alphabet, pieces, sources, work)
    decider.prepare()
    plan = ShardPlan(pieces, decider.decide, work / "pieces", Windowing.of(config), config.shard_tokens)
    splits = _write(plan, decider, staging, work / "shards", alphabet, tags)
    leaks = leak_report(staging, splits, alphabet, config.leak_sample)
    warnings = (
        *report.warnings,
        *empty_sources(s.info for s in read),
        *decider.warnings,
        *_empty_splits(config, splits),
    )
    for message in warnings:
        log.warning("warning: %s", message)
    write_skipped(staging / "skipped.tsv", pieces, work / "pieces", decider.skipped_rows())
    decider.write_duplicates(staging / "duplicates.tsv")
    return Manifest(
        protlat_version=__version__,
        versions=decider.versions(),
        alphabet=alphabet.to_plain(),
        fixed_length=config.fixed_length,
        overlap=config.overlap,
        tags=tuple(tags),
        splits=splits,
        sources=tuple(source.info for source in read),
        parameters=config.deciding(),
        account=account_of(report, decider, splits, config),
        clusters=decider.cluster_facts,
        leaks=leaks,
        warnings=warnings,
    )


def _empty_splits(config: PrepConfig, splits: dict[str, SplitInfo]) -> list[str]:
    """A warning for each split that was asked for and got nothing."""
    split = config.split
    wanted = {"train": True, "valid": split.valid or split.valid_fraction, "test": split.test or split.test_fraction}
    return [
        f"no sequence is in {name}: "
        + (
            "all are in other splits"
            if name == "train"
            else "too few clusters for so small a fraction, or all are duplicates"
        )
        for name, asked in wanted.items()
        if asked and name not in splits
    ]


def _read_all(config: PrepConfig, alphabet: Alphabet, sources: list[Source], folder: Path) -> list[_ReadSource]:
    """Pieces of every source; finished ones of an earlier run are kept."""
    sizes = [os.path.getsize(source.path) if source.path != "-" else 0 for source in sources]
    n_workers = choose_workers(config, sum(sizes))
    total = float(sum(sizes)) if all(source.path != "-" for source in sources) else None
    streams: list[ByteSource] = []
    finished: dict[tuple[int, int], PieceInfo] = {}
    with progress("read", total, "bytes") as line:

        def works() -> Iterator[Work]:
            for index, source in enumerate(sources):
                stream = ByteSource(source.path, on_read=line.advance, hashed=True)
                streams.append(stream)
                for work in read_source(index, source, stream, config):
                    known = load_finished(folder, work.source, work.block)
                    if known is None:
                        yield work
                    else:
                        finished[work.source, work.block] = known

        for piece in make_pieces(works(), config, alphabet, folder, n_workers):
            finished[piece.source, piece.block] = piece
    by_source: list[list[PieceInfo]] = [[] for _ in sources]
    for key in sorted(finished):
        by_source[key[0]].append(finished[key])
    result = []
    for source, stream, pieces in zip(sources, streams, by_source, strict=True):
        info = SourceInfo(
            path=source.path,
            format=source.format,
            compression=stream.compression,
            split=source.split,
            size_bytes=stream.size_bytes,
            sha256=stream.sha256,
            n_records=sum(int(piece.report["n_records"]) for piece in pieces),
        )
        result.append(_ReadSource(info, pieces))
    return result


def _tags_of(pieces: list[PieceInfo]) -> list[str]:
    tags = sorted({tag for piece in pieces for tag in piece.tags} | {""})
    if len(tags) > MAX_TAGS:
        raise SequenceError(
            f"{len(tags):,} different tags, for example {tags[1]!r}; at most {MAX_TAGS:,}: the tag names a source"
        )
    return tags


def _write(
    plan: ShardPlan, decider: Decider, output: Path, journal: Path, alphabet: Alphabet, tags: list[str]
) -> dict[str, SplitInfo]:
    maker = ShardMaker(plan, output, journal, alphabet, tags)
    splits = {}
    with progress("write", float(sum(tally.n_tokens for tally in plan.tallies.values())), "tokens") as line:
        for split in SPLITS:
            shards = []
            for number in range(len(plan.shards[split])):
                shards.append(maker.make(split, number))
                line.advance(shards[-1].n_tokens)
            if shards:
                splits[split] = split_info(plan.tallies[split], shards, decider.n_clusters(split))
    return splits
