"""Whose work lies in the output folder: the same command resumes it, another one is refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from protlat.alphabet import Alphabet
from protlat.data.shards import MANIFEST_NAME, SPLITS, read_manifest
from protlat.errors import OutputError
from protlat.files import require_disk_space, sha256_file, write_json

from .config import PrepConfig
from .sources import Source

WORK_NAME = ".prep"
_OWN_FILES = (MANIFEST_NAME, "skipped.tsv", "duplicates.tsv")
# Rough need of the disk by compressed input: text expands about four times, and is there as pieces and as shards.
_EXPANSION = {True: 4, False: 1}


def fingerprint(config: PrepConfig, alphabet: Alphabet) -> str:
    """Hash of everything but the inputs that decides the result."""
    text = json.dumps([config.deciding(), alphabet.to_plain()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def facts_of(sources: list[Source]) -> list[dict[str, Any]]:
    """Size and time of change of every input, which a rerun must find unchanged."""
    facts = []
    for source in sources:
        stat = os.stat(source.path) if source.path != "-" else None
        facts.append(
            {
                "path": source.path,
                "split": source.split,
                "format": source.format,
                "size_bytes": stat.st_size if stat else None,
                "changed_ns": stat.st_mtime_ns if stat else None,
            }
        )
    return facts


def is_finished(output: Path, config: PrepConfig, alphabet: Alphabet, sources: list[Source]) -> bool:
    """Whether `output` holds the finished result of this very command on these very files.

    Raises
    ------
    OutputError
        It holds the result of another command or of other files.
    """
    if not (output / MANIFEST_NAME).exists():
        return False
    manifest = read_manifest(output)
    advice = "name another folder or pass --overwrite"
    if manifest.parameters != config.deciding() or manifest.alphabet != alphabet.to_plain():
        changed = sorted(k for k, v in config.deciding().items() if manifest.parameters.get(k) != v)
        detail = f" (differs in {', '.join(changed)})" if changed else ""
        raise OutputError(f"{output}: holds shards of another prep command{detail}; {advice}")
    for source, info in zip(sources, manifest.sources, strict=False):
        if source.path == "-":
            raise OutputError(f"{output}: holds finished shards; standard input cannot be compared with them; {advice}")
        if os.path.getsize(source.path) != info.size_bytes or sha256_file(source.path) != info.sha256:
            raise OutputError(f"{output}: was made from another {source.path}, which has changed since; {advice}")
    return [source.path for source in sources] == [info.path for info in manifest.sources]


def open_work(
    output: Path, config: PrepConfig, alphabet: Alphabet, sources: list[Source], overwrite: bool
) -> tuple[Path, bool]:
    """The folder of unfinished work, and whether earlier work lies in it.

    Raises
    ------
    OutputError
        The folder holds something else, or the work of another command or of changed files, or the disk is too small.
    """
    if overwrite:
        clear(output)
    work = output / WORK_NAME
    plan = {"fingerprint": fingerprint(config, alphabet), "sources": facts_of(sources)}
    plan_path = work / "plan.json"
    resumed = False
    if plan_path.exists():
        old = json.loads(plan_path.read_text())
        advice = "run that command again, name another folder, or pass --overwrite"
        if old["fingerprint"] != plan["fingerprint"] or [s["path"] for s in old["sources"]] != [
            s.path for s in sources
        ]:
            raise OutputError(f"{output}: holds the unfinished work of another prep command; {advice}")
        for before, now in zip(old["sources"], plan["sources"], strict=True):
            if before != now:
                raise OutputError(
                    f"{now['path']}: has changed since the unfinished prep in {output}; pass --overwrite to begin again"
                )
        resumed = any((work / "pieces").glob("*.json"))
        if any(source.path == "-" for source in sources):
            # What comes through a pipe this time cannot be known to be the same.
            shutil.rmtree(work)
            resumed = False
    elif output.exists() and any(entry.name != WORK_NAME for entry in output.iterdir()):
        raise OutputError(f"{output}: is not empty and holds no prep work; name another folder")
    size = sum(s["size_bytes"] or 0 for s in plan["sources"])
    compressed = any(not s.path.endswith((".fasta", ".fa", ".faa", ".txt", ".md", ".jsonl")) for s in sources)
    require_disk_space(output, size * _EXPANSION[compressed] * 2 * alphabet.dtype.itemsize + 10_000_000, "prep")
    for name in ("pieces", "shards", "scratch"):
        (work / name).mkdir(parents=True, exist_ok=True)
    write_json(plan_path, plan)
    return work, resumed


def clear(output: Path) -> None:
    """Remove what prep itself makes from a folder, and nothing else."""
    shutil.rmtree(output / WORK_NAME, ignore_errors=True)
    # The manifest first: without it the rest no longer passes for a finished result.
    for name in _OWN_FILES:
        (output / name).unlink(missing_ok=True)
    for split in SPLITS:
        for path in (output / split).glob("shard-*.arrow"):
            path.unlink()
        if (output / split).is_dir() and not any((output / split).iterdir()):
            (output / split).rmdir()
