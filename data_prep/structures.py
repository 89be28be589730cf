"""`protlat prep structures`: structure files to lines of JSON with sequence and coordinates."""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import logging
import multiprocessing
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from protlat.errors import ConfigError, OutputError, ProtlatError, SequenceError
from protlat.files import atomic_path, sync_folder, write_json, write_text
from protlat.reporting import format_seconds, progress

from .lock import own_folder
from .structures_config import PrepStructuresConfig
from .structures_file import StructurePart, is_structure_name, make_part, stem_of

log = logging.getLogger(__name__)
# Below this many files a second process costs more to start than it saves.
_PARALLEL_FILES = 200
_IDENTITY = "command.json"
# File, identifier ("" for the file as a whole), reason.
Skipped = tuple[str, str, str]


def run(config: PrepStructuresConfig, overwrite: bool = False) -> dict[str, Any]:
    """Read structures and write their chains.

    A run that was stopped goes on when it is started again with the same settings and files.

    Returns
    -------
    dict
        The closing account, row by row.

    Raises
    ------
    ConfigError
        No input or output was named.
    SequenceError
        An input does not exist, or no chain is left to write.
    OutputError
        The output exists or cannot be written.
    """
    if not config.output:
        raise ConfigError("no output: name a file (.jsonl, .jsonl.gz) or a folder with -o")
    start_s = time.monotonic()
    paths = find_structures(config.inputs)
    output = Path(config.output)
    if output.exists() and not overwrite and not (output.is_dir() and not any(output.iterdir())):
        raise OutputError(f"{output} exists; replace it with --overwrite, or choose another output")
    if output.exists() and config.one_file == output.is_dir():
        found = "a folder" if output.is_dir() else "a file"
        raise OutputError(f"{output}: is {found}; names that end in .jsonl or .jsonl.gz are files, others folders")
    if output.is_dir():
        # A folder of other things is not ours to replace.
        alien = [f.name for f in output.iterdir() if f.suffix != ".jsonl" and f.name != "skipped.tsv"]
        if alien:
            raise OutputError(f"{output}: holds other files, such as {alien[0]}; name an empty or a new folder")
    work = output.parent / f".{output.name}.work"
    with own_folder(work):
        _claim(work, config, paths)
        parts = list(_parts(paths, config, work))
        try:
            account = _publish(parts, config, output)
        except SequenceError:
            # The input or the command must change, and neither would match this work.
            shutil.rmtree(work)
            raise
        shutil.rmtree(work)
    return {**account, "time": format_seconds(time.monotonic() - start_s)}


def find_structures(inputs: tuple[str, ...]) -> list[str]:
    """Files of all inputs in their order; those of a folder by name.

    Raises
    ------
    ConfigError
        Nothing was given.
    SequenceError
        An input does not exist, or a folder holds no structure.
    """
    if not inputs:
        raise ConfigError("no input: name structure files or folders")
    found: list[str] = []
    for given in inputs:
        path = Path(given)
        if path.is_dir():
            inside = sorted(str(file) for file in path.rglob("*") if file.is_file() and is_structure_name(file))
            if not inside:
                raise SequenceError(
                    f"{given}: no structure in this folder; expected .pdb, .ent or .cif, also compressed"
                )
            found += inside
        elif path.is_file():
            found.append(given)
        else:
            matching = sorted(glob.glob(given, recursive=True))
            if not matching:
                raise SequenceError(f"{given}: no such file or folder")
            found += matching
    return list(dict.fromkeys(found))


def _claim(work: Path, config: PrepStructuresConfig, paths: list[str]) -> None:
    """Keep finished parts of a run with the same settings and files; drop those of another."""
    files = [[path, os.path.getsize(path), os.stat(path).st_mtime_ns] for path in paths]
    identity = json.loads(json.dumps({"settings": config.deciding(), "files": files}))
    known = work / _IDENTITY
    if known.is_file():
        if json.loads(known.read_text(encoding="utf-8")) == identity:
            log.info("%s: taking up the work of a stopped run", config.output)
            return
        for file in work.glob("*.json"):
            file.unlink()
    write_json(known, identity)


def _parts(paths: list[str], config: PrepStructuresConfig, work: Path) -> Iterator[StructurePart]:
    """Parts of all files, in order; those that are there already are read back."""
    n_workers = config.workers or (1 if len(paths) < _PARALLEL_FILES else min(_n_cores(), 8))
    places = [work / f"{number:08d}.json" for number in range(len(paths))]
    with progress("read", len(paths), "files") as line:
        if n_workers == 1:
            for path, place in zip(paths, places, strict=True):
                _make(path, config, place)
                line.advance()
        else:
            # Forking would copy this process's threads in an unknown state; a fresh interpreter has none.
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(n_workers, context) as pool:
                try:
                    for _ in pool.map(_make, paths, [config] * len(paths), places, chunksize=8):
                        line.advance()
                except BrokenProcessPool:
                    raise ProtlatError(
                        "a worker process was killed from outside, probably for lack of memory; the same command with fewer "
                        "--workers goes on"
                    ) from None
    for place in places:
        part = StructurePart.read(place)
        assert part is not None
        yield part


def _make(path: str, config: PrepStructuresConfig, place: Path) -> None:
    if not place.is_file():
        make_part(path, config).write(place)


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _publish(parts: list[StructurePart], config: PrepStructuresConfig, output: Path) -> dict[str, Any]:
    """Write the result from all parts, and say what it is."""
    notes: Counter[str] = Counter()
    for part in parts:
        notes.update(part.notes)
    skipped: list[Skipped] = [(part.path, name, reason) for part in parts for name, reason in part.skipped]
    kept = _kept_lines(parts, config, skipped, notes)
    n_chains = sum(len(lines) for lines in kept)
    if not n_chains:
        told = ": ".join(cell for cell in skipped[0] if cell) if skipped else f"{parts[0].path}: no protein chain in it"
        more = f" ({len(parts):,} files, none with a chain to write)" if len(parts) > 1 else ""
        raise SequenceError(f"{told}{more}")
    if config.one_file:
        _write_lines(output, [line for lines in kept for line in lines])
        left_out = output.with_name(f"{output.name.removesuffix('.gz').removesuffix('.jsonl')}.skipped.tsv")
    else:
        _write_folder(output, parts, kept)
        left_out = output / "skipped.tsv"
    _write_skipped(left_out, skipped)
    n_residues = sum(len(json.loads(line)["seq"]) for lines in kept for line in lines)
    n_unread = sum(1 for part in parts if any(not name for name, _ in part.skipped))
    rows: dict[str, Any] = {
        "files in": len(parts),
        "files left out": n_unread,
        "protein chains": sum(part.n_chains for part in parts),
        "chains written": n_chains,
        "residues written": n_residues,
        **{name: count for name, count in sorted(notes.items()) if count},
        "written to": str(output),
    }
    if skipped:
        rows["what was left out"] = str(left_out)
    return rows


def _kept_lines(
    parts: list[StructurePart], config: PrepStructuresConfig, skipped: list[Skipped], notes: Counter[str]
) -> list[list[str]]:
    """Lines of each part, identifiers made unique, duplicates dropped where that was asked for."""
    seen_names: set[str] = set()
    seen_sequences: dict[bytes, str] = {}
    kept: list[list[str]] = []
    for part in parts:
        lines = []
        for line in part.lines:
            values = json.loads(line)
            digest = hashlib.sha256(values["seq"].encode()).digest()
            if config.duplicates == "drop" and digest in seen_sequences:
                skipped.append((part.path, values["id"], f"same sequence as {seen_sequences[digest]}"))
                notes["chains of equal sequence dropped"] += 1
                continue
            seen_sequences.setdefault(digest, values["id"])
            name, number = values["id"], 1
            while name in seen_names:
                number += 1
                name = f"{values['id']}#{number}"
            if name != values["id"]:
                notes["equal identifiers told apart (name#2)"] += 1
                line = json.dumps({**values, "id": name}, separators=(",", ":"), ensure_ascii=False)
            seen_names.add(name)
            lines.append(line)
        kept.append(lines)
    return kept


def _write_skipped(path: Path, skipped: list[Skipped]) -> None:
    """The table of what was left out, in the columns of the other commands; none where nothing was."""
    if not skipped:
        path.unlink(missing_ok=True)
        return
    rows = [("file", "line", "identifier", "reason"), *((file, "0", name, reason) for file, name, reason in skipped)]
    write_text(path, "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows))


def _write_lines(path: Path, lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    with atomic_path(path) as temporary:
        # Without the time of day the same chains give the same file.
        temporary.write_bytes(gzip.compress(data, 6, mtime=0) if path.name.endswith(".gz") else data)


def _write_folder(output: Path, parts: list[StructurePart], kept: list[list[str]]) -> None:
    """One file per structure with a chain, in a folder that appears whole."""
    fresh = output.with_name(f".{output.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    taken: set[str] = set()
    for part, lines in zip(parts, kept, strict=True):
        if lines:
            stem, number = stem_of(part.path), 1
            while (name := stem if number == 1 else f"{stem}#{number}") in taken:
                number += 1
            taken.add(name)
            _write_lines(fresh / f"{name}.jsonl", lines)
    if output.exists():
        shutil.rmtree(output)
    fresh.rename(output)
    sync_folder(output.parent)
