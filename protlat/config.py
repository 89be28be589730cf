"""Base of every config class: strict, frozen, YAML in and out, overrides by dotted key."""

from __future__ import annotations

import difflib
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import Self

from protlat.errors import ConfigError


class Config(BaseModel):
    """A frozen set of settings; unknown keys are refused with the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    @classmethod
    def parse(cls, values: dict[str, Any], where: str = "settings") -> Self:
        """Validate a plain dictionary.

        Parameters
        ----------
        values : dict
            Nested plain values, as read from YAML.
        where : str
            What to name in the message: a file or an option.

        Raises
        ------
        ConfigError
            An unknown key, a wrong type or an impossible combination; one line per fault.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(_explain(cls, error, where)) from None

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Sequence[str] = (), **values: Any) -> Self:
        """Defaults < YAML file < keyword values < ``a.b=c`` overrides.

        Keyword values that are None are left out, so that options not given do not hide the file.

        Raises
        ------
        ConfigError
            The file cannot be read or a value does not fit.
        """
        merged: dict[str, Any] = {}
        where = "settings"
        if path is not None:
            merged = read_yaml(path)
            where = str(path)
        for key, value in values.items():
            if value is not None:
                set_dotted(merged, key.replace("__", "."), value)
        for item in overrides:
            key, equals, text = item.partition("=")
            if not equals or not key:
                raise ConfigError(f"--set {item}: expected KEY=VALUE, for example --set optim.lr=1e-3")
            set_dotted(merged, key.strip(), parse_scalar(text))
        return cls.parse(merged, where)

    def to_plain(self) -> dict[str, Any]:
        """Nested plain values that YAML and JSON can hold."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_plain(), sort_keys=False, allow_unicode=True)

    def to_commented_yaml(self) -> str:
        """YAML of every value, each key under its one-line documentation."""
        return "\n".join(_commented(self, 0)) + "\n"


def parse_scalar(text: str) -> Any:
    """A value from the command line, read as YAML; ``1e-3`` is a number (YAML 1.1 alone says text)."""
    value = yaml.safe_load(text)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises
    ------
    ConfigError
        The file is missing, is not YAML, or holds something else than a mapping.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected keys and values, found {type(values).__name__}")
    return values


def set_dotted(values: dict[str, Any], key: str, value: Any) -> None:
    """Set ``a.b.c`` in nested dictionaries; a number names an element of a list."""
    here: Any = values
    parts = key.split(".")
    for depth, part in enumerate(parts[:-1]):
        if isinstance(here, list):
            here = here[_list_index(here, part, key)]
        else:
            if here.get(part) is None:
                here[part] = {}
            here = here[part]
        if not isinstance(here, dict | list):
            raise ConfigError(f"{'.'.join(parts[: depth + 1])}: holds a single value, so {key} cannot be set")
    if isinstance(here, list):
        here[_list_index(here, parts[-1], key)] = value
    else:
        here[parts[-1]] = value


def _list_index(values: list[Any], part: str, key: str) -> int:
    if not part.isdigit() or int(part) >= len(values):
        raise ConfigError(f"{key}: {part!r} is not an index below {len(values)}")
    return int(part)


def _explain(cls: type[BaseModel], error: ValidationError, where: str) -> str:
    lines = []
    faults = error.errors(include_url=False)
    for fault in faults:
        inside = [other for other in faults if other["loc"][: len(fault["loc"])] == fault["loc"] != other["loc"]]
        if fault["type"] == "too_short" and inside:
            # A list is called too short as well where its only elements are faulty.
            continue
        loc = [str(part) for part in fault["loc"]]
        key = ".".join(loc)
        if fault["type"] == "extra_forbidden":
            known = sorted(_fields_at(cls, loc[:-1]))
            near = difflib.get_close_matches(loc[-1], known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            lines.append(f"{where}: {key}: unknown key; {hint}")
        else:
            message = fault["msg"].removeprefix("Value error, ")
            if fault["type"] == "union_tag_not_found":
                message = f"which kind is meant? set {key}.kind too"
            got = fault.get("input")
            shown = f" (got {got!r})" if isinstance(got, str | int | float | bool) else ""
            lines.append(f"{where}: {key}: {message}{shown}" if key else f"{where}: {message}{shown}")
    return "\n".join(lines)


def _fields_at(cls: type[BaseModel], loc: list[str]) -> set[str]:
    """Known keys at a location; tags of unions and list indices are followed."""
    candidates: list[type[BaseModel]] = [cls]
    for part in loc:
        inner: list[type[BaseModel]] = []
        for candidate in candidates:
            field = candidate.model_fields.get(part)
            inner += _config_types(field.annotation) if field is not None else [candidate]
        tagged = [c for c in inner if "kind" in c.model_fields and c.model_fields["kind"].default == part]
        candidates = tagged or inner
    return {name for candidate in candidates for name in candidate.model_fields}


def _config_types(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and not get_args(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    if get_origin(annotation) in (Union, types.UnionType) or get_args(annotation):
        return [found for part in get_args(annotation) for found in _config_types(part)]
    return []


def _commented(config: BaseModel, indent: int, first: str = "") -> list[str]:
    pad = " " * indent
    lines: list[str] = []
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if field.description:
            lines.append(f"{pad}# {' '.join(field.description.split())}")
        lines += _commented_value(name, value, indent)
    return lines


def _commented_value(name: str, value: Any, indent: int) -> list[str]:
    pad = " " * indent
    if isinstance(value, BaseModel):
        inner = _commented(value, indent + 2)
        return [f"{pad}{name}:", *inner] if inner else [f"{pad}{name}: {{}}"]
    if isinstance(value, tuple | list) and any(isinstance(item, BaseModel) for item in value):
        dumped = [item.model_dump(mode="json") if isinstance(item, BaseModel) else item for item in value]
        text = yaml.safe_dump({name: dumped}, sort_keys=False)
        return [pad + line for line in text.splitlines()]
    plain = type("_One", (Config,), {"__annotations__": {"v": Any}, "v": value})().to_plain()["v"]
    text = yaml.safe_dump({name: plain}, sort_keys=False, default_flow_style=True, width=10_000).strip()
    return [pad + text.removeprefix("{").removesuffix("}")]
