"""The record of a run: one JSON line per step and evaluation, and the same as TensorBoard scalars."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any

from protlat.errors import OutputError
from protlat.files import write_text

METRICS_FILE = "metrics.jsonl"


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Rows of a metrics file; a last line that a kill cut short is left out."""
    rows = []
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    for line in text.splitlines(keepends=True):
        if line.endswith("\n") and line.strip():
            rows.append(json.loads(line))
    return rows


class MetricsLog:
    """Appends rows to ``metrics.jsonl`` and scalars to ``tensorboard/``.

    Parameters
    ----------
    folder : path
        The run folder.
    last_step : int
        Rows of later steps, left by a run that was killed after its last checkpoint, are taken off, so that a resumed
        run's record has each step once.
    at_end : bool
        The run has reached its end and will be scored again: a final evaluation that is there already is taken off too.
    """

    def __init__(self, folder: str | Path, last_step: int, at_end: bool = False) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.path = Path(folder) / METRICS_FILE
        rows = [row for row in read_metrics(self.path) if row["step"] <= last_step]
        if at_end:
            rows = [row for row in rows if not (row["step"] == last_step and row.get("whole"))]
        write_text(self.path, "".join(_line(row) for row in rows))
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115  closed in `close`
        self._board = SummaryWriter(str(Path(folder) / "tensorboard"), purge_step=last_step + 1)

    def write(self, row: dict[str, Any]) -> None:
        """Record one row: it holds ``kind`` ("train" or "eval") and ``step``.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        try:
            self._file.write(_line(row))
            self._file.flush()
            for name, value in row.items():
                if name not in ("kind", "step") and isinstance(value, int | float) and math.isfinite(value):
                    self._board.add_scalar(f"{row['kind']}/{name}", value, row["step"])
        except OSError as error:
            raise OutputError(
                f"{self.path.parent}: the record of step {row['step']} cannot be written: {error}; checkpoints are kept"
            ) from None

    def close(self) -> None:
        """Flush and close both; rows that a full disk did not take have been reported by `write`."""
        for file in (self._file, self._board):
            with contextlib.suppress(OSError):
                file.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
