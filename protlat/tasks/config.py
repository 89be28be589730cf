"""Settings of a task: where its files are, what their labels mean, how they are split, what is known about its scores."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from protlat.alphabet import STANDARD_RESIDUES
from protlat.config import Config
from protlat.data.policies import SequencePolicy
from protlat.tasks.cleaning import Inconsistent
from protlat.tasks.data import TaskType
from protlat.tasks.readers import AnySource
from protlat.tasks.readers.base import text_mapping

# Score that a task is known by, where its file names none.
DEFAULT_METRICS: dict[str, str] = {
    "sequence_class": "accuracy",
    "sequence_multilabel": "fmax",
    "sequence_value": "spearman",
    "residue_class": "accuracy",
    "residue_value": "spearman",
    "pair": "precision_long_l",
}


class Published(Config):
    """A score that others report for this task."""

    who: str
    """Model or method."""
    value: float
    """Score, in the unit of our metric (shares run from 0 to 1)."""
    metric: str
    """Name of the metric."""
    split: str
    """Name of our split that it belongs to."""
    source: str
    """Where it is written."""
    comparable: bool = False
    """Whether training and test data are the ones used here, so that the figures may stand in one table."""
    note: str = ""
    """What differs."""


class CutConfig(Config):
    """A split cut from train where the files bring none."""

    fraction: float = Field(gt=0, lt=1)
    """Share of train's proteins that go to it."""
    seed: int = Field(0, ge=0, lt=1 << 63)
    """Another seed gives another cut; the cut does not depend on the order of the records."""
    keep_together: Literal["auto", "near", "identical"] = "auto"
    """near: sequences of about 70 % identity stay on one side; identical: only equal ones do, for variants of one protein; auto: identical where over half of train are variants of one protein, else near."""


class CrossValidationConfig(Config):
    """One round of a cross-validation: a part is the test, the rest is train."""

    fold: int = Field(0, ge=0)
    """Number of the part that is the test, from 0."""
    parts: tuple[str, ...] = ()
    """Splits of the files that are the parts; empty: train is cut into `n_folds` parts."""
    n_folds: int = Field(5, ge=2)
    """Parts to cut train into where the files bring none."""
    valid: Literal["cut", "next"] = "cut"
    """Validation: cut from train (see `valid`), or the next part as a whole."""

    @model_validator(mode="after")
    def _fold_exists(self) -> CrossValidationConfig:
        n_folds = len(self.parts) or self.n_folds
        if self.fold >= n_folds:
            raise ValueError(f"fold {self.fold}: there are {n_folds} parts, numbered from 0")
        if self.valid == "next" and n_folds < 3:
            raise ValueError("valid: next needs at least 3 parts, one of them left to train on")
        return self


class TaskConfig(Config):
    """One task of prediction."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_.-]+$")
    """Short name, used for files and tables."""
    title: str = ""
    """What is predicted, in words."""
    type: TaskType
    """sequence_class, sequence_multilabel, sequence_value, residue_class, residue_value or pair."""
    sources: tuple[AnySource, ...] = Field(min_length=1)
    """Labelled files."""
    classes: tuple[str, ...] = ()
    """Names of the classes in the order of their codes; empty: those of train, sorted. Any other label is then an error."""
    label_map: dict[str, str | None] = Field(default_factory=dict)
    """Class of each label as written; several may name one class; null: left out (a residue: not scored)."""
    missing: tuple[str, ...] = ("", "nan", "NaN", "NA", "N/A", "None", "null", "?")
    """Labels as written that mean that nothing is known."""
    separator: str = ";"
    """What parts the labels of a multi-label record, and the values of a residue_value record (blanks and commas do too)."""
    restrict: str = ""
    """Residues whose labels count, such as Y; empty: all. Labels at others are not scored."""
    value_range: tuple[float, float] | None = None
    """Lowest and highest value that a label can have; others are an error."""
    unseen: Literal["error", "keep", "skip"] = "keep"
    """A class of valid or test that train never shows: stop; keep it and warn (a model cannot predict it, which counts against it); leave it out."""
    min_count: int = Field(1, ge=1)
    """Multi-label: train examples that a class needs; rarer ones are left out of train, and counted."""
    valid: CutConfig | None = CutConfig(fraction=0.1)
    """How validation is cut from train where the files bring none; null: no validation."""
    test: CutConfig | None = None
    """How a test is cut from train where the files bring none."""
    zero_shot: bool = False
    """Scored without training: the files need no train."""
    cross_validation: CrossValidationConfig | None = None
    """Parts of a cross-validation, and which one is the test."""
    overlap: Literal["warn", "drop_train", "drop_test", "error"] = "warn"
    """A sequence both in train (or valid) and in a test: tell; leave it out of train and valid; of the test; stop."""
    inconsistent: Inconsistent = "error"
    """A record whose labels are not as many as its residues: stop, or leave it out and count it."""
    policy: SequencePolicy = SequencePolicy()
    """What to do with gaps, unknown letters and stops in sequences."""
    wild_type: str = ""
    """Sequence that the variants of a mutational scan derive from."""
    offset: int = 1
    """Number of the wild type's first residue in the names of variants, as in H24C."""
    metric: str = ""
    """Score that the task is known by; empty: by type."""
    metrics: tuple[str, ...] = ()
    """Further scores."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: each class weighs the same in training, however rare."""
    threshold: float | Literal["best"] = 0.5
    """Multi-label and binary: probability from which a class is predicted; best: the one with the best F1 on validation."""
    published: tuple[Published, ...] = ()
    """Scores that others report; several of one source may share an entry, with values: {who: value} in place of who and value."""
    source: str = ""
    """Where the data comes from, and its licence."""
    note: str = ""
    """What one has to know to read the scores."""

    @field_validator("label_map", mode="before")
    @classmethod
    def _text_keys(cls, value: Any) -> Any:
        return text_mapping(value)

    @field_validator("published", mode="before")
    @classmethod
    def _one_by_one(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        entries: list[Any] = []
        for entry in value:
            if not isinstance(entry, dict) or "values" not in entry:
                entries.append(entry)
                continue
            shared = dict(entry)
            scores = shared.pop("values")
            if not isinstance(scores, dict):
                raise ValueError("values: expected who: value")
            entries += [{"who": str(who), "value": score, **shared} for who, score in scores.items()]
        return entries

    @field_validator("classes", "missing", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        if any(isinstance(item, bool) for item in value):
            raise ValueError("YAML reads yes, no, on, off, true and false as booleans: put the names in quotes")
        return [str(item) for item in value]

    @field_validator("wild_type", "restrict")
    @classmethod
    def _is_protein(cls, value: str) -> str:
        odd = sorted(set(value) - set(STANDARD_RESIDUES))
        if odd:
            raise ValueError(f"holds {', '.join(odd)}; allowed: {STANDARD_RESIDUES}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _default_metric(cls, values: Any) -> Any:
        if isinstance(values, dict) and not values.get("metric") and values.get("type") in DEFAULT_METRICS:
            return {**values, "metric": DEFAULT_METRICS[values["type"]]}
        return values

    @model_validator(mode="after")
    def _fits_type(self) -> TaskConfig:
        if self.classes and not self.has_classes:
            raise ValueError(f"classes: a {self.type} task has none")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("classes: a name stands twice")
        if self.label_map and not self.has_classes:
            raise ValueError(f"label_map: a {self.type} task has values, not classes")
        if self.classes:
            known = set(self.classes)
            for mapping in (self.label_map, *(source.label_map for source in self.sources)):
                for key, name in mapping.items():
                    if name is not None and name not in known and self.label_map.get(name, "") not in known:
                        raise ValueError(f"label_map: {key}: {name!r} is none of the classes {', '.join(self.classes)}")
        for number, source in enumerate(self.sources):
            if (source.kind == "structures") != (self.type == "pair"):
                raise ValueError(
                    f"sources.{number}: kind {source.kind} does not fit a {self.type} task; structures hold pairs"
                )
            if source.kind == "variants" and not (self.wild_type and self.type == "sequence_value"):
                raise ValueError(f"sources.{number}: variants need wild_type, and a task of type sequence_value")
        if self.value_range is not None and (self.has_classes or self.value_range[0] >= self.value_range[1]):
            raise ValueError("value_range: lowest and highest of a task of values, in this order")
        if self.restrict and not self.is_per_residue:
            raise ValueError(f"restrict: a {self.type} task has one label per protein")
        if isinstance(self.threshold, float) and not 0 < self.threshold < 1:
            raise ValueError("threshold: a probability above 0 and below 1, or best")
        return self

    @property
    def has_classes(self) -> bool:
        """Whether labels are names rather than numbers or coordinates."""
        return self.type in ("sequence_class", "sequence_multilabel", "residue_class")

    @property
    def is_per_residue(self) -> bool:
        """Whether each residue has a label of its own."""
        return self.type in ("residue_class", "residue_value")
