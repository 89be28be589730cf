"""The account that prep ends with: what came in, what became of it, what stayed out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protlat.data.records import SequenceReport
from protlat.data.shards import Manifest, SourceInfo, SplitInfo
from protlat.files import atomic_path, format_bytes
from protlat.reporting import format_count, format_seconds, peak_memory_bytes, print_summary

from .config import PrepConfig
from .pieces import PieceInfo, piece_path
from .windows import Windowing

if TYPE_CHECKING:
    from .decisions import Decider

_NAMED = 5  # files named in a warning
_SKIPPED_COLUMNS = "file\tline\tidentifier\treason\n"


def report_of(pieces: list[PieceInfo]) -> SequenceReport:
    """The counts of all pieces together."""
    total = SequenceReport()
    for piece in pieces:
        values = dict(piece.report)
        for name in ("changes", "unknown", "reasons"):
            values[name] = Counter(values[name])
        total.add(SequenceReport(**values))
    return total


def empty_sources(sources: Iterable[SourceInfo]) -> list[str]:
    """A warning when inputs hold no records: an empty file is mostly a download or a step before that failed."""
    empty = [source.path for source in sources if not source.n_records]
    if not empty:
        return []
    more = f" and {len(empty) - _NAMED:,} more" if len(empty) > _NAMED else ""
    return [f"no records in {', '.join(empty[:_NAMED])}{more}"]


def write_skipped(path: Path, pieces: list[PieceInfo], folder: Path, more: Iterable[str]) -> None:
    """Join the skipped rows of all pieces, in input order, and those left out later."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as handle:
        handle.write(_SKIPPED_COLUMNS)
        for piece in pieces:
            part = piece_path(folder, piece.source, piece.block).with_suffix(".skipped")
            if part.exists():
                handle.write(part.read_text(encoding="utf-8"))
        handle.writelines(more)


def account_of(
    report: SequenceReport, decider: Decider, splits: dict[str, SplitInfo], config: PrepConfig
) -> dict[str, Any]:
    """Counts for the manifest; every record read is in exactly one of written, skipped and duplicate."""
    n_duplicates = decider.n_duplicates + decider.n_cross_duplicates if config.duplicates == "drop" else 0
    skipped = dict(sorted((+report.reasons).items()))
    if decider.n_repeated_ids_skipped:
        skipped["repeated identifier"] = decider.n_repeated_ids_skipped
    n_written = report.n_kept - n_duplicates - decider.n_repeated_ids_skipped
    return {
        "records_read": report.n_records,
        "records_written": n_written,
        "rows_written": sum(split.n_sequences for split in splits.values()),
        "records_cut": decider.n_cut,
        "records_windowed": decider.n_windowed,
        "records_skipped": sum(skipped.values()),
        "skipped_by_reason": skipped,
        "duplicate_sequences": decider.n_duplicates,
        "duplicates_across_splits": decider.n_cross_duplicates,
        "duplicate_policy": config.duplicates,
        "repeated_identifiers": decider.n_repeated_ids,
        "residues_read": report.n_residues_in,
        "residues_written": sum(split.n_tokens for split in splits.values()),
        "unknown_residues": dict(sorted((+report.unknown).items())),
        "changes": dict(sorted((+report.changes).items())),
    }


def summarize(manifest: Manifest, config: PrepConfig, output: Path, elapsed_s: float) -> None:
    """Print the closing table to stderr."""
    account = manifest.account
    rows: dict[str, Any] = {"records read": account["records_read"]}
    for name, split in manifest.splits.items():
        row_name = "sequences" if manifest.fixed_length is None else "rows"
        rows[f"{name} written"] = f"{split.n_sequences:,} {row_name}, {split.n_tokens:,} tokens"
    windowing = Windowing.of(config)
    if windowing.size is not None:
        row_name = "records cut" if windowing.start_only else "records in windows"
        rows[row_name] = account["records_cut" if windowing.start_only else "records_windowed"]
    rows["records skipped"] = _with_parts(account["records_skipped"], account["skipped_by_reason"])
    kept = "" if account["duplicate_policy"] == "drop" else " (kept)"
    rows["duplicate sequences"] = f"{account['duplicate_sequences']:,}{kept}"
    if len(manifest.splits) > 1:
        rows["duplicates across splits"] = account["duplicates_across_splits"]
    rows["repeated identifiers"] = account["repeated_identifiers"]
    if manifest.alphabet["name"] == "protein":
        rows["unknown residues"] = _with_parts(sum(account["unknown_residues"].values()), account["unknown_residues"])
    rows |= account["changes"]
    for name, leak in manifest.leaks.get("splits", {}).items():
        rows[f"{name} near train"] = (
            f"{100 * leak['share_near']:.1f} % of {leak['n_compared']:,} compared: {manifest.leaks['method']}"
            if leak["n_compared"]
            else f"not known: all {leak['n_too_short']:,} looked at are too short to compare"
        )
    if account["records_skipped"]:
        rows["records skipped"] += f", listed in {output / 'skipped.tsv'}"
    for number, warning in enumerate(manifest.warnings):
        rows["warning" if not number else f"warning {number + 1}"] = warning
    unit = "residues" if manifest.alphabet["name"] == "protein" else "bytes"
    rate = format_count(account["residues_read"] / max(elapsed_s, 1e-9))
    rows["speed"] = f"{rate} {unit}/s, {format_seconds(elapsed_s)}"
    rows["peak memory, main process"] = format_bytes(peak_memory_bytes())
    rows["shards"] = str(output)
    print_summary("protlat prep", rows)


def _with_parts(total: int, parts: dict[str, int]) -> str:
    if not parts:
        return f"{total:,}"
    return f"{total:,} ({', '.join(f'{name} {count:,}' for name, count in parts.items())})"
