"""The folder of a run: whose it is, how it was started, whether it may be gone on with."""

from __future__ import annotations

import json
import logging
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from protlat import __version__
from protlat.config import read_yaml
from protlat.errors import CheckpointError, ConfigError, OutputError, ShardError
from protlat.files import write_json, write_text
from protlat.training.describe import CONFIG_FILE, RUN_FILE, is_run_folder

log = logging.getLogger(__name__)
_PACKAGES = ("torch", "deepspeed", "numpy", "pyarrow", "safetensors", "pydantic")


class RunFolder:
    """A run's folder on disk.

    Parameters
    ----------
    path : path
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def prepare(self, resume: bool, overwrite: bool) -> None:
        """Make the folder, or check that it holds the run to go on with.

        Raises
        ------
        CheckpointError
            There is nothing to resume.
        OutputError
            It holds another run, or files that are none of ours; those are never deleted.
        """
        path = self.path
        if resume:
            if not is_run_folder(path):
                raise CheckpointError(f"{path}: there is no run here to resume")
            return
        if path.exists() and not path.is_dir():
            raise OutputError(f"{path}: is a file; give a folder for the run")
        if path.is_dir() and any(path.iterdir()):
            if not is_run_folder(path):
                raise OutputError(f"{path}: holds other files; give an empty or a new folder")
            if not overwrite:
                raise OutputError(
                    f"{path}: already holds a run; use --resume to go on with it, or --overwrite to delete it"
                )
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)

    def check_resumed(self, config: dict[str, Any], fixed: Sequence[str], manifest_sha256: str) -> None:
        """Compare settings and data with those that the run was started with; what may change is logged.

        Parameters
        ----------
        config : dict
            Settings now, nested plain values.
        fixed : sequence of str
            Keys that cannot change.
        manifest_sha256 : str
            Checksum of the shard manifest.

        Raises
        ------
        ConfigError, ShardError
            The run would become another one.
        """
        self.check_settings(config, fixed)
        if self.facts()["data"]["manifest_sha256"] != manifest_sha256:
            raise ShardError(f"{config['shards']}: these are not the shards that the run was started on")

    def check_settings(self, config: dict[str, Any], fixed: Sequence[str]) -> None:
        """Compare settings with those that the run was started with; what may change is logged.

        Raises
        ------
        ConfigError
            One of `fixed` differs.
        """
        before = read_yaml(self.path / CONFIG_FILE)
        for key in fixed:
            if before.get(key) != config[key]:
                raise ConfigError(
                    f"{self.path}: {key} differs from the run's {CONFIG_FILE}; a resumed run cannot change it"
                )
        flat_before, flat_now = dict(_flat(before)), dict(_flat(config))
        for key in sorted(flat_before.keys() | flat_now.keys()):
            if flat_before.get(key) != flat_now.get(key):
                log.warning("resume: %s was %s, now %s", key, flat_before.get(key), flat_now.get(key))

    def check_data(self, key: str, value: str, what: str) -> None:
        """Compare a fact about what a run reads with the one it was started on.

        Raises
        ------
        ConfigError
            It differs.
        """
        if self.facts()["data"].get(key) != value:
            raise ConfigError(f"{self.path}: {what} is not what the run was started on; a resumed run cannot change it")

    def facts(self) -> dict[str, Any]:
        """What `write_start` and `set_state` have written."""
        facts: dict[str, Any] = json.loads((self.path / RUN_FILE).read_text(encoding="utf-8"))
        return facts

    def write_start(
        self, config_yaml: str, deepspeed: dict[str, Any], data: dict[str, Any], session: dict[str, Any]
    ) -> None:
        """Record what a session starts with: settings, data, versions, command line, and facts of the session."""
        facts = self.facts() if (self.path / RUN_FILE).is_file() else {"sessions": []}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        facts |= {"data": data, "versions": versions()}
        facts["sessions"].append({"time": now, "command": command_line(), **session})
        write_json(self.path / RUN_FILE, facts)
        write_json(self.path / "deepspeed.json", deepspeed)
        # Last: with it the folder counts as a run.
        write_text(self.path / CONFIG_FILE, config_yaml)

    def set_state(self, state: str) -> None:
        """Say in a few words where the run stands; a note that a full disk does not take hides no other error."""
        try:
            write_json(self.path / RUN_FILE, {**self.facts(), "state": state})
        except OSError as error:
            log.warning("%s: the state %r cannot be noted: %s", self.path / RUN_FILE, state, error)


def versions() -> dict[str, str]:
    """Versions of what a run's numbers depend on."""
    found = {"protlat": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def command_line() -> str:
    """How this process was started."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested settings by dotted key."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
