"""Small parts of the closing account that embed and predict share."""

from __future__ import annotations

import difflib
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from protlat.data.records import SkippedRecord
from protlat.errors import ConfigError, SequenceError
from protlat.files import atomic_path


class SkippedTable:
    """Rows of ``skipped.tsv``, held on disk until the run is done, however many they are."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
        self.n_rows = 0

    def __enter__(self) -> SkippedTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, record: SkippedRecord) -> None:
        """Append one row."""
        cells = (record.file, str(record.line_1based), record.identifier, record.reason)
        self._file.write("\t".join(" ".join(cell.split()) for cell in cells) + "\n")
        self.n_rows += 1

    def keep(self, path: Path) -> None:
        """Write the table to `path`; without rows, remove what an earlier run left there."""
        if not self.n_rows:
            path.unlink(missing_ok=True)
            return
        self._file.seek(0)
        with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", errors="surrogateescape") as out:
            out.write("file\tline\tidentifier\treason\n")
            shutil.copyfileobj(self._file, out)


def require_given(settings: Mapping[str, object]) -> None:
    """Check that what a run cannot do without was given.

    Raises
    ------
    ConfigError
        Names the setting and its option.
    """
    for name, value in settings.items():
        if not value:
            raise ConfigError(f"{name}: nothing given; see --help")


def require_inputs(paths: Sequence[str], option_words: Sequence[str] = ()) -> None:
    """Check that inputs exist.

    Raises
    ------
    SequenceError
        One does not; a word much like one of `option_words` is probably a mistyped value of an option.
    """
    for path in paths:
        if path != "-" and not Path(path).exists():
            near = difflib.get_close_matches(path, option_words, n=1, cutoff=0.6)
            raise SequenceError(
                f"{path}: no such file or folder" + (f"; did you mean --include {near[0]}?" if near else "")
            )


@contextmanager
def spooled_stdin(paths: Sequence[str], folder: Path) -> Iterator[list[str]]:
    """Paths that can be read more than once: standard input (``-``) goes to a temporary file in `folder`."""
    if "-" not in paths:
        yield list(paths)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".stdin-", dir=folder) as place:
        spool = Path(place) / "stdin"
        with open(spool, "wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out)
        yield [str(spool) if path == "-" else path for path in paths]


def histogram(length_counts: Mapping[int, int]) -> list[list[str | int]]:
    """[label, count] by powers of two of the length, from counts by upper bound."""
    if not length_counts:
        return []
    bounds = []
    upper = min(length_counts)
    while upper <= max(length_counts):
        bounds.append(upper)
        upper *= 2
    return [[f"{bound // 2:,}-{bound - 1:,}", length_counts.get(bound, 0)] for bound in bounds]


def unknown_text(unknown: Counter[str]) -> str | int:
    """How many unknown residues, and which: ``12 (X 10, U 2)``."""
    total = sum(unknown.values())
    if not total:
        return 0
    return f"{total:,} ({', '.join(f'{letter} {count:,}' for letter, count in unknown.most_common())})"


def model_name(folder: Path) -> str:
    """Name of a model: its folder's, or its run folder's when it is that run's ``model/``."""
    resolved = folder.resolve()
    return resolved.parent.name if resolved.name == "model" else resolved.name
