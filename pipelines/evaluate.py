"""`protlat evaluate`: a model on any set of tasks, beside plain baselines, as one report."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from protlat import __version__
from protlat.data.masking import MaskingConfig
from protlat.data.shards import ShardReader, read_manifest
from protlat.devices import resolve_device, resolve_dtype, set_threads
from protlat.errors import ConfigError, OutputError, ProtlatError, SequenceError, ShardError, TrainingError
from protlat.evaluation.heldout import score_heldout
from protlat.evaluation.report import write_report
from protlat.evaluation.results import HELDOUT_FILE, ROWS_FOLDER, TASK_FILE, RowResult, row_key
from protlat.files import format_bytes, write_json
from protlat.inference.account import model_name, require_given
from protlat.models import MaskedLM, model_hash, read_model_config, resolve_model_folder
from protlat.reporting import format_seconds, peak_memory_bytes
from protlat.tasks.data import TRAIN, VALID
from protlat.tasks.load import DATA_VARIABLE, LoadedTask, find_task, read_task
from protlat.tasks.names import task_names
from protlat.tasks.readers.base import located
from protlat.training.run_folder import versions

from .evaluate_config import EvaluateConfig
from .evaluate_data import rows_for, sampled, split_facts
from .evaluate_pairs import PAIR_ROWS, score_pair_row
from .evaluate_rows import LabelContext, Stopwatch, make_one_hot, make_random, score_row
from .evaluate_zero_shot import ZERO_SHOT_ROWS, score_zero_shot
from .finetune import data_hash
from .finetune_pairs import data_hash_of_pairs

__all__ = ["EvaluateConfig", "run"]

log = logging.getLogger(__name__)
RUN_FILE = "evaluation.json"
# Settings beyond the model that a row's numbers depend on, by kind of row.
_SHARED = ("seed", "n_bootstrap", "dtype")
_BY_ROW = {
    "composition": ("probe",), "kmer": ("probe",), "onehot_cnn": ("head_residues",), "random_probe": ("probe", "layer"),
    "scratch": ("scratch_residues", "layer"), "probe": ("probe", "layer"), "head": ("head_residues", "layer"),
    "lora": ("full_residues", "layer"), "full": ("full_residues", "layer"), "zero_shot": ("scoring",),
    **{row: ("pair", "pair_steps", "layer") for row in PAIR_ROWS if row not in ("head", "separation")},
}  # fmt: skip
_OF_PAIRS = ("pair", "pair_steps", "layer")
_NEEDS_WEIGHTS = ("probe", "head", "lora", "full", "zero_shot", "pairs_convolution")
_NEEDS_ARCHITECTURE = ("random_probe", "scratch", "random_pairs")


def run(config: EvaluateConfig) -> dict[str, Any]:
    """Score a model on tasks and write the report; rows that are there already are kept.

    Returns
    -------
    dict
        The closing account, row by row.

    Raises
    ------
    ConfigError, SequenceError, CheckpointError, OutputError
        Settings, tasks or model that cannot be used; nothing is computed then.
    TrainingError
        Rows failed; the report holds the others, and a rerun tries these again.
    """
    require_given({"MODEL": config.model, "output (-o)": config.output})
    set_threads(config.threads)
    return _Run(config).execute()


class _Run:
    """One evaluation."""

    def __init__(self, config: EvaluateConfig) -> None:
        self.config = config
        self.model = resolve_model_folder(config.model)
        self.output = Path(config.output)
        if self.output.exists() and not self.output.is_dir():
            raise OutputError(f"-o {self.output}: is a file; give a folder")
        if self.output.resolve() in (self.model.resolve(), self.model.resolve().parent):
            raise ConfigError(f"-o {self.output}: holds the model; give another folder")
        self.rows_folder = self.output / ROWS_FOLDER
        self.device = resolve_device(config.device)
        self.model_config, self.alphabet = read_model_config(self.model)
        if self.alphabet.name != "protein":
            raise ConfigError(f"{config.model}: this model reads {self.alphabet.name}, and the tasks are of proteins")
        if self.model_config.causal:
            raise ConfigError(f"{config.model}: a causal model; evaluate scores models that see both sides")
        self.model_hash = model_hash(self.model)
        self.heldout = self._open_heldout()
        self.tasks, self.absent = self._find_tasks()
        self.failed: list[tuple[str, str, str]] = []
        self.counts: Counter[str] = Counter()
        self.started_s = time.monotonic()

    def execute(self) -> dict[str, Any]:
        config = self.config
        self.output.mkdir(parents=True, exist_ok=True)
        work = self.output / ".work"
        shutil.rmtree(work, ignore_errors=True)
        # Half-written files of a killed run; they carry the name that `atomic_path` gives.
        for leftover in (*self.output.glob(".tmp-*"), *self.rows_folder.rglob(".tmp-*")):
            leftover.unlink()
        try:
            random = make_random(self.model, work / "random", config.seed)
            one_hot = make_one_hot(self.model, work / "one_hot")
            self._masked()
            for number, name in enumerate(self.tasks, start=1):
                log.info("task %d of %d: %s", number, len(self.tasks), name)
                self._task(name, random, one_hot, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)
            # Also after Ctrl-C: what is done can be read.
            write_report(self.output, self._run_facts(), [str(name) for name in self._known_names()])
        if self.failed:
            task, row, message = self.failed[0]
            raise TrainingError(
                f"{len(self.failed)} rows failed, the first: {task}, {row}: {message} (the others are in "
                f"{self.output / 'report.html'}; run again to try these again)"
            )
        return self._summary()

    def _find_tasks(self) -> tuple[dict[str, tuple[Any, Path]], dict[str, str]]:
        """Settings and data folder of every task, by name; tasks that nobody asked for may lack their files."""
        config = self.config
        found: dict[str, tuple[Any, Path]] = {}
        absent: dict[str, str] = {}
        for task in config.tasks or task_names():
            settings, folder = find_task(task, config.data)
            if settings.name in found:
                raise ConfigError(f"tasks: two are called {settings.name!r}; set another name in one of the files")
            try:
                for source in settings.sources:
                    located(folder, source.path)
            except SequenceError as error:
                if config.tasks:
                    raise
                absent[settings.name] = str(error)
                continue
            found[settings.name] = (settings, folder)
        if not found:
            reason = next(iter(absent.values()), "")
            raise ConfigError(
                f"no task has its files there: {reason}; give --data FOLDER, set {DATA_VARIABLE}, or name a labelled file"
            )
        for name in absent:
            log.warning("task %s is left out: %s", name, absent[name])
        return found, absent

    def _open_heldout(self) -> tuple[ShardReader, ShardReader | None] | None:
        path = self.config.heldout
        if path is None:
            return None
        splits = list(read_manifest(path).splits)
        if VALID not in splits:
            raise ShardError(f"{path}: no split {VALID!r} to score on; it has {', '.join(splits)}")
        valid = ShardReader(path, VALID)
        if valid.alphabet.tokens != self.alphabet.tokens:
            raise ShardError(
                f"{path}: made with the alphabet {valid.alphabet.name!r}, the model reads {self.alphabet.name!r}"
            )
        return valid, ShardReader(path, TRAIN) if TRAIN in splits else None

    def _masked(self) -> None:
        """The held-out masked-language score, unless it is there."""
        if self.heldout is None:
            return
        config, (valid, train) = self.config, self.heldout
        masking = MaskingConfig()
        key = row_key(
            row="heldout", model=self.model_hash, valid=valid.fingerprint, train=train.fingerprint if train else None,
            masking=masking.to_plain(), tokens=config.heldout_tokens, floors=config.floor_tokens,
            shared=self._settings(()),
        )  # fmt: skip
        path = self.output / HELDOUT_FILE
        if self._same_key(path, key):
            self.counts["kept"] += 1
            return
        log.info("held-out masked-language score")
        watch = Stopwatch()
        with watch.step("likelihoods"):
            dtype = resolve_dtype(config.dtype, self.device)
            model = MaskedLM.from_pretrained(self.model, self.device, dtype)
            budget = config.toks_per_batch or (65_536 if self.device.type == "cuda" else 8_192)
            found = score_heldout(
                model, valid, train, masking, config.heldout_tokens, config.floor_tokens, budget, config.n_bootstrap,
                config.seed,
            )  # fmt: skip
        facts = {"shards": str(config.heldout), "masking": masking.to_plain(), "seconds": watch.seconds}
        write_json(path, {"key": key, **found.to_plain(), **facts})
        self.counts["computed"] += 1

    def _same_key(self, path: Path, key: str) -> bool:
        if self.config.overwrite or not path.is_file():
            return False
        try:
            return bool(json.loads(path.read_text(encoding="utf-8")).get("key") == key)
        except (OSError, ValueError, AttributeError):
            return False

    def _settings(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Settings that a row's numbers depend on."""
        plain = self.config.to_plain()
        dtype = str(resolve_dtype(self.config.dtype, self.device)).removeprefix("torch.")
        return {**{name: plain[name] for name in (*_SHARED, *names)}, "dtype": dtype}

    def _task(self, name: str, random: Path, one_hot: Path, work: Path) -> None:
        """Every row of one task that is not there yet."""
        config = self.config
        settings, folder = self.tasks[name]
        watch = Stopwatch()
        try:
            with watch.step("reading"):
                loaded = sampled(read_task(settings, folder), config)
        except ProtlatError as error:
            self._fail(name, "reading", error)
            return
        wanted = rows_for(loaded, config.rows)
        hashed = data_hash_of_pairs(loaded.data.splits) if loaded.data.type == "pair" else data_hash(loaded.data)
        keys = {row: self._key(row, loaded, hashed) for row in wanted}
        self._write_task(loaded, wanted, watch.seconds)
        own_cache = self.output / "vectors"
        cache = Path(config.cache) if config.cache else own_cache
        for row in wanted:
            if self._is_there(name, row, keys[row]):
                self.counts["kept"] += 1
                continue
            log.info("%s: %s", name, row)
            context = LabelContext(config, loaded, self.model, random, one_hot, work, cache, Stopwatch())
            try:
                scores, facts = self._scored(context, row)
            except ProtlatError as error:
                self._fail(name, row, error)
                continue
            watch = context.watch
            RowResult(name, row, keys[row], scores, watch.seconds, facts, watch.cpu_s).write(self.rows_folder)
            self.counts["computed"] += 1
        shutil.rmtree(own_cache, ignore_errors=True)

    def _scored(self, context: LabelContext, row: str) -> tuple[Any, dict[str, Any]]:
        if context.data.type == "pair":
            return score_pair_row(context, row)
        return score_zero_shot(context, row) if row in ZERO_SHOT_ROWS else score_row(context, row)

    def _fail(self, task: str, row: str, error: ProtlatError) -> None:
        log.error("%s, %s: failed: %s", task, row, error)
        self.failed.append((task, row, " ".join(str(error).split())))

    def _key(self, row: str, loaded: LoadedTask, hashed: str) -> str:
        task = loaded.config
        facts: dict[str, Any] = {
            "row": row,
            "data": hashed,
            "task": {
                "metrics": [task.metric, *task.metrics], "class_weights": task.class_weights, "threshold": task.threshold,
                "wild_type": task.wild_type, "offset": task.offset,
            },
            "settings": self._settings(_OF_PAIRS if loaded.data.type == "pair" and row == "head" else _BY_ROW.get(row, ())),
        }  # fmt: skip
        if row in _NEEDS_WEIGHTS:
            facts["model"] = self.model_hash
        elif row in _NEEDS_ARCHITECTURE:
            facts["architecture"] = self.model_config.to_plain()
        return row_key(**facts)

    def _is_there(self, task: str, row: str, key: str) -> bool:
        """Whether a row of this key is in the output folder, or can be taken over from another one."""
        if self.config.overwrite:
            return False
        mine = RowResult.read(self.rows_folder / task / f"{row}.json")
        if mine is not None and mine.key == key:
            return True
        for other in self.config.reuse:
            theirs = RowResult.read(Path(other) / ROWS_FOLDER / task / f"{row}.json")
            if theirs is not None and theirs.key == key:
                theirs.write(self.rows_folder)
                return True
        return False

    def _write_task(self, loaded: LoadedTask, wanted: list[str], seconds: dict[str, float]) -> None:
        task, data = loaded.config, loaded.data
        plain = {
            "name": task.name, "title": task.title, "type": task.type, "metric": task.metric, "metrics": list(task.metrics),
            "source": task.source, "note": task.note, "published": [item.to_plain() for item in task.published],
            "classes": list(data.classes), "splits": split_facts(data),
            "warnings": list(data.warnings), "notes": list(loaded.notes), "rows": wanted, "seconds": seconds,
        }  # fmt: skip
        write_json(self.rows_folder / task.name / TASK_FILE, plain)

    def _known_names(self) -> list[str]:
        """Tasks of this run whose data has been read."""
        return [name for name in self.tasks if (self.rows_folder / name / TASK_FILE).is_file()]

    def _run_facts(self) -> dict[str, Any]:
        config = self.config
        facts = {
            "model": model_name(self.model),
            "model_folder": str(config.model),
            "model_hash": self.model_hash,
            "parameters": _n_parameters(self.model),
            "d_model": self.model_config.d_model,
            "n_layers": self.model_config.n_layers,
            "protlat": __version__,
            "versions": versions(),
            "device": str(self.device),
            "settings": config.to_plain(),
            "seconds": round(time.monotonic() - self.started_s, 1),
            "failed": [{"task": task, "row": row, "error": message} for task, row, message in self.failed],
            "absent": self.absent,
            "counts": dict(self.counts),
        }
        write_json(self.output / RUN_FILE, facts)
        return facts

    def _summary(self) -> dict[str, Any]:
        report = self.output / "report.html"
        rows: dict[str, Any] = {
            "model": f"{model_name(self.model)} ({self.model_hash[:12]})",
            "tasks": len(self.tasks),
            "left out, without data": len(self.absent),
            "rows computed": self.counts["computed"],
            "rows kept from before": self.counts["kept"],
            "time": format_seconds(time.monotonic() - self.started_s),
            "peak memory": format_bytes(peak_memory_bytes()),
            "written": f"{report}, scores.json, scores.tsv",
        }
        return rows


def _n_parameters(folder: Path) -> int:
    from protlat.models import describe_model

    return int(describe_model(folder)["parameters"])


if __name__ == "__main__":
    from protlat.cli.main import main

    main(["evaluate", *sys.argv[1:]])
