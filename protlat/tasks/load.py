"""A task's settings and files -> its splits in memory."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from protlat.config import parse_scalar, read_yaml, set_dotted
from protlat.data.records import SequenceReport
from protlat.errors import ConfigError, SequenceError
from protlat.tasks.assemble import classes_of, drop_rare, split_from, unique_names
from protlat.tasks.checks import check_labels, check_neighbours, check_repeats, resolve_overlap
from protlat.tasks.config import TaskConfig
from protlat.tasks.data import TaskData
from protlat.tasks.examples import Example, ExampleReader, LabelAccount
from protlat.tasks.infer import task_of_file
from protlat.tasks.names import is_labelled_file, nearest_name, task_names
from protlat.tasks.readers.base import ReadContext
from protlat.tasks.splits import arrange

DATA_VARIABLE = "PROTLAT_DATA"


@dataclass(frozen=True)
class LoadedTask:
    """A task with its data.

    Attributes
    ----------
    config : TaskConfig
    data : TaskData
    notes : tuple of str
        How splits were cut.
    report : SequenceReport
        What was changed or left out while its files were read.
    account : LabelAccount
        Labels that are missing, masked or left out.
    neighbours : dict
        For each split but train, how near it is to train (`protlat.tasks.checks.check_neighbours`); empty if not asked for.
    """

    config: TaskConfig
    data: TaskData
    notes: tuple[str, ...]
    report: SequenceReport
    account: LabelAccount
    neighbours: dict[str, dict[str, Any]]


def load_task(
    task: str | Path, data: str | Path | None = None, overrides: Sequence[str] = (), neighbours: bool = True
) -> LoadedTask:
    """Read a task.

    Parameters
    ----------
    task : str or Path
        Name of a task that comes with the package; a YAML file; or a labelled file itself: FASTA with TARGET= in its
        headers, or a table with columns such as sequence and label.
    data : str or Path, optional
        Folder that the task's paths are relative to; else the environment variable PROTLAT_DATA, else the YAML's folder.
    overrides : sequence of str
        ``key=value`` for single settings, such as ``cross_validation.fold=2``.
    neighbours : bool
        Compare the tests with train, a second or two.

    Raises
    ------
    ConfigError
        The task is unknown or its settings do not fit.
    SequenceError
        A file is missing or damaged, or its records do not fit the settings.
    """
    config, folder = find_task(task, data, overrides)
    return read_task(config, folder, neighbours)


def find_task(
    task: str | Path, data: str | Path | None = None, overrides: Sequence[str] = ()
) -> tuple[TaskConfig, Path]:
    """Settings of a task, and the folder of its files.

    Raises
    ------
    ConfigError
        The task is unknown or its settings do not fit.
    SequenceError
        It is a labelled file whose labels cannot be read.
    """
    text = str(task)
    given = data if data is not None else os.environ.get(DATA_VARIABLE) or None
    if text.endswith((".yaml", ".yml")):
        values, home = read_yaml(text), Path(text).parent
    elif text in (names := task_names()):
        if given is None:
            raise ConfigError(f"task {text!r}: where are its files? give --data FOLDER or set {DATA_VARIABLE}")
        with resources.as_file(resources.files("protlat.configs").joinpath("task", f"{text}.yaml")) as path:
            values, home = read_yaml(path), path.parent
    elif is_labelled_file(text):
        file = Path(text) if given is None or Path(text).is_file() else Path(given) / text
        if not file.is_file():
            raise SequenceError(f"{file}: no such file")
        values, home = task_of_file(file).to_plain(), file.parent
        # Another type given by an override has another metric.
        del values["metric"]
        given = None
    else:
        near = nearest_name(text)
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(names)}"
        raise ConfigError(
            f"task {text!r} is unknown; {hint}, or a .yaml file, or a labelled FASTA, CSV, TSV or Parquet file"
        )
    _override(values, overrides)
    return TaskConfig.parse(values, text), Path(given) if given is not None else home


def _override(values: dict[str, Any], overrides: Sequence[str]) -> None:
    for item in overrides:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"{item}: expected KEY=VALUE, for example cross_validation.fold=2")
        set_dotted(values, key.strip(), parse_scalar(text))


def read_task(config: TaskConfig, folder: Path, neighbours: bool = True) -> LoadedTask:
    """Read the files of a task, split and check them.

    Parameters
    ----------
    config : TaskConfig
    folder : Path
        Folder that its paths are relative to.
    neighbours : bool
        Compare the tests with train, a second or two.

    Raises
    ------
    SequenceError
        A file is missing or damaged, its records do not fit the settings, or there is nothing to learn or to score.
    """
    reader = ExampleReader(config)
    context = ReadContext(folder, config.is_per_residue, config.wild_type, config.offset)
    found: dict[str, list[Example]] = {}
    for source in config.sources:
        raw = source.read(context, reader.report)
        for example in reader.examples(source, raw):
            found.setdefault(example.split, []).append(example)
    if not any(found.values()):
        raise SequenceError(
            f"{config.name}: no labelled examples in {', '.join(source.path for source in config.sources)}"
        )
    warnings = list(reader.report.warnings)
    splits, notes = arrange(config, found)
    splits, lines = resolve_overlap(config, splits)
    warnings += lines
    warnings += drop_rare(config, splits)
    residue_names = reader.residue_classes.names
    classes, lines = classes_of(config, splits, residue_names)
    warnings += lines + check_repeats(config, splits)
    n_renamed = unique_names(splits)
    if n_renamed:
        warnings.append(f"{n_renamed:,} identifiers stand more than once and were numbered (name#2)")
    built = {name: split_from(config, examples, classes, residue_names) for name, examples in splits.items()}
    data = TaskData(config.name, config.type, classes, built)
    warnings += check_labels(config, data)
    near: dict[str, dict[str, Any]] = {}
    if neighbours:
        near, lines = check_neighbours(config, data)
        warnings += lines
    data = dataclasses.replace(data, warnings=tuple(warnings))
    return LoadedTask(config, data, tuple(notes), reader.report, reader.account, near)
