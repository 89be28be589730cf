"""Whose work lies in the output folder: the same command resumes it, another one is refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from protlat.alphabet import Alphabet
from protlat.data.shards import MANIFEST_NAME, read_manifest
from protlat.errors import OutputError, SequenceError
from protlat.files import require_disk_space, sha256_file, write_json

from .clusters import choose_method
from .config import PrepConfig
from .publish import STAGING_NAME
from .sources import Source

WORK_NAME = ".prep"
# Rough need of the disk by compressed input: text expands about four times, and is there as pieces and as shards.
_EXPANSION = {True: 4, False: 1}


def fingerprint(config: PrepConfig, alphabet: Alphabet) -> str:
    """Hash of everything but the inputs that decides the result."""
    text = json.dumps([config.deciding(), alphabet.to_plain()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _cluster_facts(config: PrepConfig) -> dict[str, Any]:
    """Where clusters come from, which decides the splits: the method, and size and time of change of a table."""
    # Asked for before anything is read, so that a missing table or program does not come up hours later.
    facts: dict[str, Any] = {"path": choose_method(config.split)}
    table = config.split.clusters
    if table is not None:
        if not os.path.isfile(table):
            raise SequenceError(f"{table}: no such table of clusters")
        stat = os.stat(table)
        facts = {"path": table, "size_bytes": stat.st_size, "changed_ns": stat.st_mtime_ns}
    return facts


def _plan_of(config: PrepConfig, alphabet: Alphabet, sources: list[Source]) -> dict[str, Any]:
    return {
        "fingerprint": fingerprint(config, alphabet),
        "sources": facts_of(sources),
        "clusters": _cluster_facts(config),
    }


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
    if [source.path for source in sources] != [info.path for info in manifest.sources]:
        raise OutputError(f"{output}: was made from other files than these patterns match now; {advice}")
    for source, info in zip(sources, manifest.sources, strict=True):
        if source.path == "-":
            raise OutputError(f"{output}: holds finished shards; standard input cannot be compared with them; {advice}")
        if os.path.getsize(source.path) != info.size_bytes or sha256_file(source.path) != info.sha256:
            raise OutputError(f"{output}: was made from another {source.path}, which has changed since; {advice}")
    table = config.split.clusters
    if table and sha256_file(table) != manifest.clusters.get("sha256"):
        raise OutputError(f"{output}: was made from another {table}, which has changed since; {advice}")
    return True


def open_work(
    output: Path, config: PrepConfig, alphabet: Alphabet, sources: list[Source], overwrite: bool
) -> tuple[Path, bool]:
    """The folder of unfinished work, and whether earlier work of the same command lies in it.

    Raises
    ------
    OutputError
        The folder holds something else, or the work of another command or of changed files, or the disk is too small.
    """
    work = output / WORK_NAME
    plan = _plan_of(config, alphabet, sources)
    facts = plan["sources"]
    resumed = _same_work(output, plan, overwrite)
    if not resumed:
        shutil.rmtree(work, ignore_errors=True)
        if output.exists() and not (output / MANIFEST_NAME).exists() and any(output.iterdir()):
            raise OutputError(f"{output}: is not empty and holds no shards; name another folder")
    remove_leftovers(output)
    size = sum(fact["size_bytes"] or 0 for fact in facts)
    compressed = any(not s.path.endswith((".fasta", ".fa", ".faa", ".txt", ".md", ".jsonl")) for s in sources)
    require_disk_space(output, size * _EXPANSION[compressed] * 2 * alphabet.dtype.itemsize + 10_000_000, "prep")
    for name in ("pieces", "shards", "scratch", STAGING_NAME):
        (work / name).mkdir(parents=True, exist_ok=True)
    write_json(work / "plan.json", plan)
    return work, resumed


def _same_work(output: Path, plan: dict[str, Any], overwrite: bool) -> bool:
    """Whether unfinished work of the same command on the same files can be taken up."""
    path = output / WORK_NAME / "plan.json"
    if not path.exists():
        return False
    old = json.loads(path.read_text())
    paths = [source["path"] for source in plan["sources"]]
    if old["fingerprint"] != plan["fingerprint"] or [source["path"] for source in old["sources"]] != paths:
        if not overwrite:
            advice = "run that command again, name another folder, or pass --overwrite"
            raise OutputError(f"{output}: holds the unfinished work of another prep command; {advice}")
        return False
    clusters = (old.get("clusters"), plan["clusters"])
    for before, now in (*zip(old["sources"], plan["sources"], strict=True), clusters):
        if before != now:
            if not overwrite:
                raise OutputError(
                    f"{now['path']}: has changed since the unfinished prep in {output}; pass --overwrite to begin again"
                )
            return False
    # What comes through a pipe this time cannot be known to be the same.
    return "-" not in paths


def has_own_work(output: Path, config: PrepConfig, alphabet: Alphabet, sources: list[Source]) -> bool:
    """Whether unfinished work of this very command lies in the folder, beside an older result or alone."""
    try:
        return _same_work(output, _plan_of(config, alphabet, sources), overwrite=False)
    except OutputError:
        return False


def remove_leftovers(output: Path) -> None:
    """Remove half-written files that a killed run left; they carry the name that `atomic_path` gives."""
    for path in (*output.glob(".tmp-*"), *(output / WORK_NAME).rglob(".tmp-*")):
        path.unlink()


def discard(output: Path) -> None:
    """Remove unfinished work that no rerun can take up, and the folder if nothing else is in it."""
    shutil.rmtree(output / WORK_NAME, ignore_errors=True)
    if output.is_dir() and not any(output.iterdir()):
        output.rmdir()
