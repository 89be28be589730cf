"""What `protlat info` tells of a shard folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protlat.data.shards import Manifest, SplitInfo, read_manifest, split_fingerprint
from protlat.files import format_bytes


def describe_shards(folder: str | Path) -> dict[str, Any]:
    """Counts, lengths, policies, leaks and sources of a shard folder, as nested plain values.

    Raises
    ------
    ShardError
        The folder is not a finished shard folder.
    """
    manifest = read_manifest(folder)
    form = "variable length"
    if manifest.fixed_length is not None:
        form = f"fixed length {manifest.fixed_length}, overlap {manifest.overlap}"
    parameters = manifest.parameters
    policies = dict(parameters.get("policy", {}))
    names = ("min_length", "max_length", "long", "duplicates", "duplicate_ids", "tag_pattern", "exclude_tags")
    policies |= {name: parameters[name] for name in names if name in parameters}
    tags = {tag for split in manifest.splits.values() for tag in split.tags} - {""}
    described: dict[str, Any] = {
        "kind": "protlat shards",
        "folder": str(folder),
        "form": form,
        "alphabet": {"name": manifest.alphabet.get("name"), "tokens": manifest.alphabet.get("n_tokens")},
        "splits": {name: _split(split) for name, split in manifest.splits.items()},
    }
    damaged = _damaged(Path(folder), manifest)
    if damaged:
        described["damaged"] = damaged
    if tags:
        described["tags"] = {
            tag: {name: split.tags.get(tag, 0) for name, split in manifest.splits.items()} for tag in sorted(tags)
        }
    account = dict(manifest.account)
    changes = account.pop("changes", {})
    account = {name.replace("_", " "): value for name, value in account.items()}
    described |= {"account": account, "changes": changes, "policies": policies, "clusters": manifest.clusters}
    described["leaks"] = manifest.leaks or "not compared: needs train and another split"
    if manifest.warnings:
        described["warnings"] = list(manifest.warnings)
    described["sources"] = {
        source.path: {
            "format": source.format,
            "compression": source.compression,
            "split": source.split or "by cluster or train",
            "records": source.n_records,
            "size": format_bytes(source.size_bytes),
            "sha256": source.sha256,
        }
        for source in manifest.sources
    }
    described["made by"] = {"protlat": manifest.protlat_version, **manifest.versions}
    return described


def _damaged(folder: Path, manifest: Manifest) -> list[str]:
    """Shard files that are missing or of another size than the manifest says; contents are not read."""
    found = []
    for split in manifest.splits.values():
        for shard in split.shards:
            path = folder / shard.file
            if not path.is_file():
                found.append(f"{shard.file} is missing")
            elif path.stat().st_size != shard.size_bytes:
                found.append(f"{shard.file} has {path.stat().st_size:,} bytes, not {shard.size_bytes:,}")
    return found


def _split(split: SplitInfo) -> dict[str, Any]:
    values: dict[str, Any] = {
        "sequences": split.n_sequences,
        "tokens": split.n_tokens,
        "shortest": split.min_length,
        "mean length": round(split.n_tokens / split.n_sequences, 1) if split.n_sequences else 0,
        "longest": split.max_length,
        "shards": len(split.shards),
        "size": format_bytes(sum(shard.size_bytes for shard in split.shards)),
        "fingerprint": split_fingerprint(split)[:16],
    }
    if split.n_clusters:
        values["clusters"] = split.n_clusters
    values["length histogram"] = [
        [f"< {bound:,}" if bound < 1 << 60 else "more", count] for bound, count in split.length_histogram
    ]
    return values
