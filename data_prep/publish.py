"""Put a finished result in its place, so that an older result stays until the new one is whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from protlat.data.shards import MANIFEST_NAME, SPLITS, Manifest
from protlat.files import sync_folder, write_json

STAGING_NAME = "out"
_MARK = "publish.json"
_TABLES = ("skipped.tsv", "duplicates.tsv")


def publish(work: Path, output: Path, manifest: Manifest | None = None) -> None:
    """Move the shards and tables out of the work folder, write the manifest last, and remove the work folder.

    Can be stopped anywhere and called again.

    Parameters
    ----------
    work, output : Path
    manifest : Manifest or None
        None takes up a publication that was stopped.
    """
    mark = work / _MARK
    if manifest is not None:
        write_json(mark, manifest.to_plain())
    values = json.loads(mark.read_text(encoding="utf-8"))
    staging = work / STAGING_NAME
    wanted = {shard["file"] for split in values["splits"].values() for shard in split["shards"]}
    # Without its manifest the old result no longer passes for a finished one.
    (output / MANIFEST_NAME).unlink(missing_ok=True)
    for name in sorted(wanted):
        if (staging / name).exists():
            (output / name).parent.mkdir(exist_ok=True)
            os.replace(staging / name, output / name)
    for name in _TABLES:
        if (staging / name).exists():
            os.replace(staging / name, output / name)
    for split in SPLITS:
        for path in (output / split).glob("shard-*.arrow"):
            if f"{split}/{path.name}" not in wanted:
                path.unlink()
        if (output / split).is_dir():
            sync_folder(output / split)
            if not any((output / split).iterdir()):
                (output / split).rmdir()
    write_json(output / MANIFEST_NAME, values)
    shutil.rmtree(work)


def is_publishing(work: Path) -> bool:
    """Whether a run was stopped while it published."""
    return (work / _MARK).exists()
