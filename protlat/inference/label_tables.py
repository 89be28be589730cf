"""Tables that give labels to identifiers."""

from __future__ import annotations

import csv
from pathlib import Path

from protlat.errors import ConfigError, SequenceError

ID_COLUMNS = ("identifier", "id", "accession")


def read_labels(path: str | Path, column: str = "label") -> dict[str, str]:
    """Labels by identifier.

    Parameters
    ----------
    path : path
        Table with a line of column names: comma-separated when it ends in .csv, else tab-separated.
    column : str
        Column of the labels. Identifiers stand in ``identifier``, ``id`` or ``accession``.

    Returns
    -------
    dict of str to str
        In the file's order; rows with an empty label are left out.

    Raises
    ------
    ConfigError
        A column is missing.
    SequenceError
        The file cannot be read, a row has too few cells, or an identifier has two labels.
    """
    path = Path(path)
    labels: dict[str, str] = {}
    try:
        with open(path, encoding="utf-8", newline="") as handle:
            rows = csv.reader(handle, delimiter="," if path.suffix.lower() == ".csv" else "\t")
            names = next(rows, [])
            id_at, label_at = _columns(path, names, column)
            for row in rows:
                if not row:
                    continue
                if len(row) <= max(id_at, label_at):
                    raise SequenceError(f"{path}: line {rows.line_num}: {len(row)} cells, but {len(names)} columns")
                identifier, label = row[id_at].strip(), row[label_at].strip()
                if not label:
                    continue
                if labels.get(identifier, label) != label:
                    raise SequenceError(
                        f"{path}: line {rows.line_num}: {identifier} has the labels {labels[identifier]!r} and {label!r}"
                    )
                labels[identifier] = label
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        if isinstance(error, SequenceError):
            raise
        raise SequenceError(f"{path}: cannot be read: {error}") from None
    return labels


def _columns(path: Path, names: list[str], column: str) -> tuple[int, int]:
    plain = [name.strip().lower() for name in names]
    there = ", ".join(names) or "none"
    found = next((plain.index(name) for name in ID_COLUMNS if name in plain), None)
    if found is None:
        raise ConfigError(f"{path}: no column {', '.join(ID_COLUMNS[:-1])} or {ID_COLUMNS[-1]}; its columns: {there}")
    if column.lower() not in plain:
        raise ConfigError(f"{path}: no column {column!r}; its columns: {there}; name one with --label-column")
    return found, plain.index(column.lower())
