"""Progress while a command works, and the accounting it ends with."""

from __future__ import annotations

import logging
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from protlat.files import format_bytes

log = logging.getLogger(__name__)
_QUIET_INTERVAL_S = 30.0


def peak_memory_bytes() -> int:
    """Highest resident memory of this process so far (children not included)."""
    try:
        with open("/proc/self/status") as status:
            peak_kb = next((line.split()[1] for line in status if line.startswith("VmHWM:")), None)
    except OSError:
        peak_kb = None
    if peak_kb is not None:
        return int(peak_kb) * 1024
    # Second choice: on Linux this figure is inherited from the process that started this one.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def current_memory_bytes() -> int:
    """Resident memory now; the peak where the system does not tell."""
    try:
        with open("/proc/self/statm") as handle:
            return int(handle.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_memory_bytes()


class Progress:
    """A live line on a terminal, a log line every half minute elsewhere.

    Parameters
    ----------
    label : str
        What is being done.
    total : float or None
        Amount of work in `unit`, None when not known.
    unit : str
        "residues", "steps", "bytes" ...
    """

    def __init__(self, label: str, total: float | None, unit: str) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done = 0.0
        self.note = ""
        self._start_s = self._last_s = time.monotonic()
        self._rich: Any = None
        self._task: Any = None

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        """Report `amount` more work done; `note` is shown beside it."""
        self.done += amount
        self.note = note or self.note
        now_s = time.monotonic()
        if self._rich is not None:
            self._rich.update(self._task, completed=self.done, note=self._text(now_s))
        elif now_s - self._last_s >= _QUIET_INTERVAL_S:
            self._last_s = now_s
            log.info("%s: %s", self.label, self._text(now_s))

    def _text(self, now_s: float) -> str:
        elapsed_s = max(now_s - self._start_s, 1e-9)
        rate = self.done / elapsed_s
        left = ""
        if self.total and rate > 0:
            left = (
                f", {100 * self.done / self.total:.0f} %, {format_seconds(max(self.total - self.done, 0) / rate)} left"
            )
        text = f"{format_count(self.done)} {self.unit}, {format_count(rate)}/s{left}"
        text += f", {format_bytes(current_memory_bytes())}"
        return f"{text}, {self.note}" if self.note else text


@contextmanager
def progress(label: str, total: float | None, unit: str) -> Iterator[Progress]:
    """Progress on stderr for the time of a ``with`` block."""
    line = Progress(label, total, unit)
    if not sys.stderr.isatty():
        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[note]}"))
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as rich_progress:
        line._rich = rich_progress
        line._task = rich_progress.add_task(label, total=total, note="")
        yield line


def format_count(value: float) -> str:
    """12,345 below a million, then 1.23M and 1.23G."""
    for size, letter in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.2f}{letter}"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def format_seconds(seconds: float) -> str:
    """Time for people: 42 s, 3 min 5 s, 2 h 10 min."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def print_summary(title: str, rows: dict[str, Any]) -> None:
    """Print the closing account of a command to stderr as a two-column table; numbers get thousands separators."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, show_header=False, title_justify="left", box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
    console = Console(stderr=True)
    # Off a terminal rich assumes 80 columns and folds paths in the middle.
    Console(stderr=True, width=console.width if console.is_terminal else 160).print(table)
