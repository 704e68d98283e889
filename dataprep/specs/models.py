"""Frozen models of what people write in YAML, and what is said of a mistake in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dataprep.errors import SpecError
from dataprep.storage import read_whole

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=100)]


class Model(BaseModel):
    """Frozen, strict, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def to_json(self) -> dict[str, Any]:
        """The model as plain JSON values."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """Validate plain JSON values.

        Args:
            value: what `json.loads` or `yaml.safe_load` gave.
            where: file or option the value came from, for the message.

        Raises:
            SpecError: names the key and what was expected, one line per problem.
        """
        try:
            return cls.model_validate_json(json.dumps(value))
        except (ValidationError, TypeError) as error:
            raise SpecError(f"{where}: {_problems(cls, error)}") from error

    @classmethod
    def check_part(cls, value: Any, where: str) -> None:
        """Raise SpecError as `from_json` does, but not for what is missing: that may come from elsewhere."""
        try:
            cls.model_validate_json(json.dumps(value))
        except (ValidationError, TypeError) as error:
            if isinstance(error, TypeError) or {each["type"] for each in error.errors()} - _MISSING:
                raise SpecError(f"{where}: {_problems(cls, error)}") from error


_MISSING = {"missing", "union_tag_not_found"}


def _problems(model: type[BaseModel], error: ValidationError | TypeError) -> str:
    if isinstance(error, TypeError):
        return f"{error}; quote dates and revisions in YAML"
    lines = []
    for problem in error.errors():
        keys, owner = _resolve(model, problem["loc"])
        key = ".".join(keys) or "(top level)"
        text = problem["msg"]
        if problem["type"] == "extra_forbidden":
            known = ", ".join(owner.model_fields) if owner is not None else ""
            text = f"unknown key{f'; known here: {known}' if known else ''}"
        elif problem["type"] == "string_type":
            text = f"expected text, found {problem['input']!r}; quote it in YAML"
            text += f": --set '{key}=\"...\"' in a shell" if len(keys) > 1 else ""
        elif problem["type"] == "tuple_type":
            text = f"expected a list, found {_shown(problem['input'])}; write [...]"
        elif problem["type"].startswith("union_tag"):
            kinds = get_args(owner.model_fields[keys[-1]].annotation) if owner is not None else ()
            named = ", ".join(get_args(each.model_fields["kind"].annotation)[0] for each in kinds)
            key, text = f"{key}.kind", f"expected one of {named}"
        elif problem["type"] == "value_error":
            text = text.removeprefix("Value error, ")  # it says by itself what was found
        elif problem["type"] != "missing":
            text = f"{text}, found {_shown(problem['input'])}"
        lines.append(f"{key}: {text}" if keys or problem["type"] != "value_error" else text)
    return "; ".join(lines)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _resolve(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[list[str], type[BaseModel] | None]:
    """The keys of a location, as they are written, and the model that the last one belongs to.

    Where a value may be of several models, pydantic puts in the name of the one that it was taken for.
    """
    keys: list[str] = []
    owner: type[BaseModel] | None = model
    parts = list(location)
    while parts:
        part = parts.pop(0)
        keys.append(str(part))
        if not parts:
            break
        field = owner.model_fields.get(str(part)) if owner is not None else None
        choices = get_args(field.annotation) if field is not None else ()
        if field is not None and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            owner = field.annotation
        elif field is not None and field.discriminator:
            kind = parts.pop(0)
            owner = next((m for m in choices if get_args(m.model_fields["kind"].annotation) == (kind,)), None)
        else:
            owner = None
    return keys, owner


def load_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML file that holds a mapping.

    Raises:
        SpecError: unreadable, not YAML, or not a mapping.
    """
    try:
        text = read_whole(path).decode()
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not YAML: {error}") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """A YAML text that holds a mapping.

    Args:
        text: the YAML.
        where: file that it is of, for the message.

    Raises:
        SpecError: not YAML, or not a mapping.
    """
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecError(f"{where} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise SpecError(f"{where}: expected a mapping of keys to values, found {type(value).__name__}")
    return value
