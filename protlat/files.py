"""Writing that a kill or a full disk cannot spoil, and reading facts about files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from protlat.errors import OutputError

_BLOCK_BYTES = 1 << 20


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that replaces it on success and is removed on failure.

    The file is flushed to disk before it takes the name, so that after a kill the name holds either the old content
    or the new one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Suffix last, so that writers which look at the ending (h5py, pyarrow, matplotlib) still see it.
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        yield temporary
        sync_file(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_file(path: str | Path) -> None:
    """Force a file's content to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: str | Path) -> None:
    """Force a folder's entries to the disk, where the system can do so."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:
        return  # a file system or system without folder handles; the rename itself is still atomic
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: str | Path, text: str) -> None:
    """Write a small text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, values: Any) -> None:
    """Write JSON atomically, keys in the order given, with a final line end."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def require_disk_space(folder: str | Path, needed_bytes: int, purpose: str) -> None:
    """Refuse to start a write that cannot fit.

    Raises
    ------
    OutputError
        The file system of `folder` has less than `needed_bytes` free.
    """
    existing = Path(folder).absolute()
    while not existing.exists():
        existing = existing.parent
    free_bytes = shutil.disk_usage(existing).free
    if free_bytes < needed_bytes:
        raise OutputError(
            f"{folder}: {purpose} needs about {format_bytes(needed_bytes)}, but only {format_bytes(free_bytes)} are free"
        )


def format_bytes(n_bytes: float) -> str:
    """A size for people: 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"
