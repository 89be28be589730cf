"""What can go wrong, by name. The command line turns each of these into one line and exit code 1."""

from __future__ import annotations


class ProtlatError(Exception):
    """Base of every error that protlat raises on purpose."""


class ConfigError(ProtlatError, ValueError):
    """A setting is unknown, of the wrong type, or impossible in this combination."""


class SequenceError(ProtlatError, ValueError):
    """An input record cannot be read or breaks a stated policy."""


class ShardError(ProtlatError, OSError):
    """A shard folder is missing, incomplete, damaged or of another kind than asked for."""


class CheckpointError(ProtlatError, OSError):
    """A model or checkpoint folder is missing, damaged or does not fit."""


class OutputError(ProtlatError, OSError):
    """A result cannot be written: it exists, belongs to other input, or the disk is too small."""


class TrainingError(ProtlatError, RuntimeError):
    """Training cannot go on: a loss that is not a number, an exploding gradient."""


class MissingExtraError(ProtlatError, ImportError):
    """A feature needs an optional package that is not installed.

    Parameters
    ----------
    package : str
        Import name of the missing package.
    extra : str
        Name of protlat's extra that brings it.
    needed_for : str
        What the user asked for.
    """

    def __init__(self, package: str, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed: pip install 'protlat[{extra}]'"
        )
