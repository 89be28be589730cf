"""Train variants of a model on the same data in the same order, and report what each change is worth."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from protlat.config import read_yaml
from protlat.errors import OutputError
from protlat.files import atomic_path, write_json, write_text
from protlat.reporting import progress
from protlat.training.metrics import METRICS_FILE, read_metrics

from .ablate_config import AblateConfig, runs_of
from .ablate_report import write_report
from .pretrain_config import PretrainConfig

log = logging.getLogger(__name__)
RUNS, TIMES, SETTINGS = "runs", "times.json", "ablation.yaml"
_NOTES = "ablation_run.json"


@dataclass(frozen=True)
class Run:
    """One variant with one seed."""

    variant: str
    seed: int
    folder: Path
    config: PretrainConfig

    @property
    def name(self) -> str:
        return f"{self.variant}, seed {self.seed}"


def run(config: AblateConfig, output: str | Path, jobs: int = 1, threads: int | None = None) -> dict[str, Any]:
    """Train what is not trained yet, time the variants, write the report.

    Parameters
    ----------
    config : AblateConfig
    output : path
        Folder of the ablation; runs that are finished there are kept, stopped ones go on.
    jobs : int
        Runs at a time.
    threads : int or None
        CPU threads of each; None: all cores, divided by `jobs`.

    Returns
    -------
    dict
        Closing account, by name.

    Raises
    ------
    ConfigError, ShardError
        Settings that do not fit, before anything is trained.
    OutputError
        The folder holds runs with other settings.
    """
    from protlat.alphabet import Alphabet
    from protlat.data.shards import read_manifest
    from protlat.models import language_model_class

    alphabet = Alphabet.from_plain(read_manifest(config.shards).alphabet)
    sizes: dict[str, int] = {}

    def count(model: Any) -> int:
        key = json.dumps(model.to_plain(), sort_keys=True)
        if key not in sizes:
            import torch

            with torch.device("meta"):
                sizes[key] = language_model_class(model)(model, alphabet).n_parameters()
        return sizes[key]

    settings = runs_of(config, len(alphabet), count)
    n_parameters = {name: count(value.model) for name, value in settings.items()}
    folder = Path(output)
    runs = [
        Run(name, seed, folder / RUNS / f"{name}-seed{seed}", value.model_copy(update={"seed": seed}))
        for seed in config.seeds
        for name, value in settings.items()
    ]
    _check(runs)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / SETTINGS, config.to_yaml())
    failed = _train(runs, jobs, threads or max(1, (os.cpu_count() or 1) // jobs))
    done = [r for r in runs if _is_finished(r.folder)]
    times = _times(folder, config, settings, alphabet, threads)
    records = [_record(r, n_parameters[r.variant]) for r in done]
    files = write_report(folder, config, records, times)
    return {
        "runs": len(runs),
        "finished": len(done),
        "failed": ", ".join(failed) or 0,
        **{f"written: {file.name}": str(file) for file in files},
    }


def _check(runs: list[Run]) -> None:
    for item in runs:
        saved = item.folder / "config.yaml"
        if saved.is_file() and PretrainConfig.parse(read_yaml(saved), str(saved)) != item.config:
            raise OutputError(f"{item.folder}: holds a run with other settings; choose another folder or delete it")


def _is_finished(folder: Path) -> bool:
    return (folder / _NOTES).is_file()


def _train(runs: list[Run], jobs: int, threads: int) -> list[str]:
    """Names of the runs that failed."""
    waiting = [item for item in runs if not _is_finished(item.folder)]
    failed = []
    children = _Children()
    with (
        children.end_with_this_process(),
        ThreadPoolExecutor(jobs) as pool,
        progress("ablate", len(waiting), "runs") as line,
    ):
        work = pool.map(lambda item: _train_one(item, threads, children), waiting)
        try:
            for item, problem in zip(waiting, work, strict=True):
                if problem is not None:
                    failed.append(item.name)
                    log.error("%s failed: %s", item.name, problem)
                line.advance(1, item.name)
        except BaseException:
            # Before the pool waits for its threads, which wait for the runs.
            pool.shutdown(wait=False, cancel_futures=True)
            children.stop()
            raise
    return failed


class _Children:
    """Processes of the runs, so that none outlives the ablation and trains on beside its successor."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def start(self, command: list[str], out: IO[bytes], environment: dict[str, str]) -> subprocess.Popen[bytes] | None:
        """Start a process, unless the ablation is being stopped."""
        with self._lock:
            if self._stopped:
                return None
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
            self._running.add(process)
            return process

    def ended(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)

    def stop(self) -> None:
        """Ask every run to save its state and end."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.send_signal(signal.SIGTERM)

    @contextmanager
    def end_with_this_process(self) -> Iterator[None]:
        """Turn SIGTERM, which would leave the runs behind, into an exception."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def leave(*_: object) -> None:
            raise SystemExit(128 + signal.SIGTERM)

        before = signal.signal(signal.SIGTERM, leave)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def _train_one(item: Run, threads: int, children: _Children) -> str | None:
    """Train one run in a process of its own, so that its memory is its own; None, or what went wrong."""
    item.folder.parent.mkdir(parents=True, exist_ok=True)
    settings, logged = (item.folder.parent / f"{item.folder.name}{suffix}" for suffix in (".yaml", ".log"))
    with atomic_path(settings) as temporary:
        Path(temporary).write_text(item.config.to_yaml(), encoding="utf-8")
    command = [sys.executable, "-m", "protlat.pipelines.pretrain", "--config", str(settings), "-o", str(item.folder)]
    if (item.folder / "config.yaml").is_file():
        command.append("--resume")
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with logged.open("ab") as out:
        process = children.start([*command, "--threads", str(threads)], out, environment)
        if process is None:
            return "the ablation was stopped"
        _, status, usage = os.wait4(process.pid, 0)
        children.ended(process)
    code = process.returncode = os.waitstatus_to_exitcode(status)
    if code != 0:
        return f"exit code {code}; its last words are in {logged}"
    # ru_maxrss counts in KiB on Linux and in bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    write_json(item.folder / _NOTES, {"peak_memory_bytes": usage.ru_maxrss * unit, "threads": threads})
    return None


def _record(item: Run, n_parameters: int) -> dict[str, Any]:
    """What the report needs of a finished run."""
    rows = read_metrics(item.folder / METRICS_FILE)
    notes = json.loads((item.folder / _NOTES).read_text(encoding="utf-8"))
    return {
        "variant": item.variant,
        "seed": item.seed,
        "parameters": n_parameters,
        "peak_memory_bytes": notes["peak_memory_bytes"],
        "rows": [row for row in rows if row["kind"] == "eval"],
        "tokens": max(row["tokens"] for row in rows),
        "train_s": sum(
            (row["tokens"] - before["tokens"]) / row["tokens_per_s"]
            for before, row in _pairs([row for row in rows if row["kind"] == "train"])
        ),
    }


def _pairs(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    yield from zip([{"tokens": 0}, *rows[:-1]], rows, strict=True)


def _times(
    folder: Path, config: AblateConfig, runs: dict[str, PretrainConfig], alphabet: Any, threads: int | None
) -> dict[str, Any]:
    """Seconds per token of every variant, from the file when it was measured with these settings before."""
    from .ablate_timing import measure

    path = folder / TIMES
    key = {name: [value.model.to_plain(), config.timing.to_plain(), threads] for name, value in runs.items()}
    if path.is_file():
        saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if saved["key"] == json.loads(json.dumps(key)):
            return saved
    measured = {"key": key, **measure(runs, config, alphabet)}
    write_json(path, measured)
    return measured
