"""One run at a time in an output folder, and what the system says of that folder in one line."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protlat.errors import OutputError, ProtlatError

log = logging.getLogger(__name__)


@contextmanager
def own_folder(output: Path) -> Iterator[None]:
    """Make a folder and hold it against other runs until the end; a killed run lets go of it by itself.

    Raises
    ------
    OutputError
        It cannot be made or written, or another run holds it.
    """
    if output.exists() and not output.is_dir():
        raise OutputError(f"{output}: is a file; -o names a folder")
    try:
        output.mkdir(parents=True, exist_ok=True)
        handle = os.open(output, os.O_RDONLY)
    except OSError as error:
        raise OutputError(f"{output}: cannot be made or opened: {error.strerror or error}") from None
    try:
        _lock(handle, output)
        yield
    except OSError as error:
        if isinstance(error, ProtlatError):
            raise
        raise OutputError(
            f"{output}: cannot be written: {error.strerror or error}; once that is mended, the same command goes on"
        ) from None
    finally:
        os.close(handle)
        if output.is_dir() and not any(output.iterdir()):
            output.rmdir()


def _lock(handle: int, output: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputError(
            f"{output}: another protlat prep is at work in it; wait for its end or name another folder"
        ) from None
    except OSError as error:
        # Some network file systems have no locks; the run itself does not need one.
        log.warning("%s: cannot be locked (%s): let no other prep write to it", output, error.strerror)
