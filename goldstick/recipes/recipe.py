"""Recipe: an ordered list of stages, with calibration, evaluation and export beside it; a closed YAML schema."""

from __future__ import annotations

import dataclasses
import difflib
import os
import warnings
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    field_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError, PydanticSerializationError, to_json

from goldstick.algorithms import ALGORITHMS, Quantizer, Stage
from goldstick.algorithms.stage import of_kind
from goldstick.core.grid import Grid
from goldstick.core.notices import RenamedOptionWarning
from goldstick.core.scheme import Scheme
from goldstick.core.training import TrainingOptions
from goldstick.errors import RecipeError
from goldstick.formats import FORMATS
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.effort import Effort, random_tokens, with_effort
from goldstick.recipes.order import misplaced, unfinishable
from goldstick.recipes.paths import placed
from goldstick.recipes.precision import Precision, with_precision
from goldstick.recipes.sentence import parse
from goldstick.recipes.strict_yaml import SIZE_LIMIT, parse_yaml
from goldstick.structure.targets import Targets


def _known_format(name: str) -> str:
    if name != "auto" and name not in FORMATS:
        *most, last = map(repr, ("auto", *FORMATS))
        raise PydanticCustomError("literal_error", f"Input should be {', '.join(most)} or {last}")
    return name


def _list_formats(schema: dict[str, Any]) -> None:
    schema["enum"] = ["auto", *FORMATS]


class Export(BaseModel):
    """How the result is stored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    format: Annotated[str, AfterValidator(_known_format), Field(json_schema_extra=_list_formats)] = "auto"
    max_shard_size: int | None = Field(default=None, ge=1_000_000, description="bytes a weight file may have")


#: Keys below the top of a recipe or of a stage, for the nearest name of an unknown one.
_NESTED_KEYS = [
    field.name for part in (Scheme, Grid, Targets, TrainingOptions) for field in dataclasses.fields(part)
] + [
    *Calibration.model_fields,
    *Export.model_fields,
    *Precision.model_fields,
]


class Recipe(BaseModel):
    """What to do to a network. Only ``stages`` is required.

    Every stage is a mapping of one algorithm's name to its options, or the name alone.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    goldstick: Literal[1] = Field(default=1, description="version of the recipe language")
    description: str = Field(default="", description="words of yours; the report shows them")
    stages: Annotated[tuple[InstanceOf[Stage], ...], WithJsonSchema({})] = Field(min_length=1)
    calibration: Calibration = Field(default=Calibration(), description="the data that stages look at")
    evaluate: tuple[str, ...] = Field(default=(), description="tasks to run before and after")
    export: Export = Field(default=Export(), description="how the result is stored")
    precision: Precision | None = Field(default=None, exclude=True, description="bits for each layer, within a budget")

    _sensitivity: Mapping[str, Any] = PrivateAttr(default_factory=dict)
    _search: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def sensitivity(self) -> Mapping[str, Any]:
        """What the bits were chosen by, as in its file; empty where nothing was. No part of the recipe's dump."""
        return self._sensitivity

    @property
    def search(self) -> Mapping[str, Any]:
        """The record of the search that found it, as its JSON holds it; empty for others. No part of the dump."""
        return self._search

    def found_by(self, search: Mapping[str, Any]) -> Recipe:
        """The recipe with the record of the search that found it."""
        found = self.model_copy()
        found._search = search
        return found

    @model_validator(mode="before")
    @classmethod
    def _read_stages(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and isinstance(value.get("stages"), list | tuple):
            stages = [_stage(index, entry) for index, entry in enumerate(value["stages"])]
            return {**value, "stages": stages}
        return value

    @field_serializer("stages")
    def _write_stages(self, stages: tuple[Stage, ...]) -> list[dict[str, Any]]:
        return [{stage.name: _adapter(type(stage)).dump_python(stage, mode="json")} for stage in stages]

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any] | Recipe) -> Recipe:
        """A recipe from words such as ``gptq-w4a16-g128``, a YAML file, a mapping, or a recipe.

        Raises:
            RecipeError: There is no such recipe or file, or its content is wrong; the message names the place.
        """
        if isinstance(source, Recipe):
            return source
        if isinstance(source, Mapping):
            return cls._validated(source, "the recipe")
        try:
            path = Path(source)
        except TypeError as error:
            raise RecipeError(
                f"A recipe is words such as 'gptq-w4a16-g128', a YAML file, a mapping with 'stages' or a Recipe, "
                f"not {source!r}."
            ) from error
        if path.suffix in (".yaml", ".yml"):
            if not path.is_file():
                raise RecipeError(f"There is no recipe file {str(source)!r}.")
            with path.open("rb") as file:
                text = file.read(SIZE_LIMIT + 1)
            return cls._validated(placed(_parsed(text, str(path)), path.parent), str(path), path.parent)
        if os.path.isfile(path):  # which takes a name that is too long for one
            raise RecipeError(f"{str(source)!r} is a file, but a recipe's file ends in .yaml or .yml; name it so.")
        recipe = cls._validated(parse(str(source)).recipe(), f"recipe {source}")
        schemes = [one for stage in of_kind(recipe.stages, Quantizer) for one in stage.schemes()]
        if problems := misplaced(recipe.stages) + unfinishable(recipe.stages, schemes):
            raise RecipeError(f"The recipe {str(source)!r} is illegal: {' '.join(problems)}")
        return recipe

    def with_effort(self, effort: Effort) -> Recipe:
        """The recipe with what an effort adds to its stages, and to its data where it says nothing (docs/effort.md)."""
        changed: dict[str, Any] = {"stages": with_effort(self.stages, effort)}
        said = "random_tokens" in self.calibration.model_fields_set
        if not said and (random := random_tokens(self.stages, effort)):
            changed["calibration"] = self.calibration.model_copy(update={"random_tokens": random})
        return self.model_copy(update=changed)

    def excluding(self, *patterns: str) -> Recipe:
        """The recipe with further layers left alone: each stage with targets excludes ``patterns``, too."""

        def without(stage: Stage) -> Stage:
            targets = getattr(stage, "targets", None)
            if not isinstance(targets, Targets):
                return stage
            exclude = tuple(dict.fromkeys((*targets.exclude, *patterns)))
            changed: Any = {"targets": dataclasses.replace(targets, exclude=exclude)}
            return dataclasses.replace(stage, **changed)

        return self.model_copy(update={"stages": tuple(map(without, self.stages))})

    @classmethod
    def _validated(cls, value: Any, where: str, folder: Path | None = None) -> Recipe:
        if not isinstance(value, Mapping):
            raise RecipeError(f"{where} is not a mapping with a list 'stages'.")
        if problem := _boolean_numbers(cls, {key: part for key, part in value.items() if key != "stages"}):
            raise RecipeError(f"{where}: {problem}")
        try:
            recipe = cls.model_validate(dict(value))
        except ValidationError as error:
            raise RecipeError(f"{where}: " + _explain(error, cls.model_fields)) from error
        if recipe.precision is None:
            return recipe
        # What was chosen takes the key's place, so that a recipe in a report says all without the file.
        stages, measured = with_precision(recipe.stages, recipe.precision, folder)
        chosen = recipe.model_copy(update={"stages": tuple(stages), "precision": None})
        chosen._sensitivity = measured
        return chosen


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Made once for each algorithm, since it takes milliseconds, and a recipe may have many stages."""
    return TypeAdapter(kind)


def _stage(index: int, entry: Any) -> Stage:
    if isinstance(entry, Stage):
        return entry
    if isinstance(entry, str):
        entry = {entry: {}}
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise RecipeError(
            f"stages[{index}] must be one algorithm with its options, such as '- rtn: {{scheme: w8a16}}'."
        )
    (name, options), *_ = entry.items()
    algorithm = ALGORITHMS.get(name)
    if algorithm is None:
        near = difflib.get_close_matches(str(name), ALGORITHMS, n=1)
        raise RecipeError(
            f"stages[{index}]: no algorithm is called {name!r}"
            + (f"; did you mean {near[0]!r}? " if near else ". ")
            + f"Known: {', '.join(ALGORITHMS)}."
        )
    options = {} if options is None else options
    if not isinstance(options, Mapping):
        raise RecipeError(f"stages[{index}].{name}: its options must be a mapping, not {options!r}.")
    options = _under_present_names(f"stages[{index}].{name}", options, algorithm.renamed)
    try:
        if problem := _boolean_numbers(algorithm, options):
            raise RecipeError(problem)
        stage: Stage = _adapter(algorithm).validate_python(dict(options))
        return stage
    except ValidationError as error:
        options = [field.name for field in dataclasses.fields(algorithm)]
        raise RecipeError(f"stages[{index}].{name}: " + _explain(error, options)) from error
    except RecipeError as error:
        raise RecipeError(f"stages[{index}].{name}: {error}") from error


def _under_present_names(place: str, options: Mapping[str, Any], renamed: Mapping[str, str]) -> Mapping[str, Any]:
    """Options of an old recipe under the names that they have now, which a warning says."""
    old = [name for name in renamed if name in options]
    for name in old:
        if renamed[name] in options:
            raise RecipeError(f"{place}: {name!r} is called {renamed[name]!r} now; take one of them out.")
        warnings.warn(f"{place}: {name!r} is called {renamed[name]!r} now.", RenamedOptionWarning, stacklevel=2)
    return {renamed.get(name, name): value for name, value in options.items()} if old else options


def _boolean_numbers(kind: type, value: Mapping[Any, Any]) -> str:
    """What is wrong with numbers given as true or false, which pydantic takes for 1 and 0; empty for nothing.

    Whole strictness would refuse ``rate: 1e-3``, which is a string to YAML 1.1.
    """
    try:
        _adapter(kind).validate_json(to_json(value, inf_nan_mode="constants", serialize_unknown=True), strict=True)
    except ValidationError as error:
        return " ".join(
            f"{_place(problem)}: Input should be a number, not {str(problem['input']).lower()}."
            for problem in error.errors()
            if isinstance(problem["input"], bool) and problem["type"] in ("int_type", "float_type")
        )
    except PydanticSerializationError as error:
        return f"it holds a value that no report could hold ({error})."
    return ""


def _place(problem: ErrorDetails) -> str:
    """Where it is, without the members of unions."""
    return ".".join(str(part) for part in problem["loc"] if part not in ("Scheme", "int", "float"))


#: Kinds of errors whose words are of Python, in those of YAML.
_NEEDED = {
    "tuple_type": "Input should be a list",
    "too_short": "Input should be a list that is not empty",
    "dataclass_type": "Input should be a name or a mapping",
    "dict_type": "Input should be a mapping",
}


def _explain(error: ValidationError, fields: Collection[str]) -> str:
    problems = error.errors()
    if any("Scheme" in problem["loc"] for problem in problems):
        # A scheme is a mapping or a name; where the mapping has a fault, that it is no name either says nothing.
        problems = [problem for problem in problems if problem["loc"][-1] != "str"]
    parts = []
    for problem in problems:
        place = _place(problem)
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            key = str(problem["loc"][-1])
            known = fields if len(problem["loc"]) == 1 else _NESTED_KEYS
            near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.4)
            parts.append(f"unknown key {place!r}" + (f"; did you mean {near[0]!r}?" if near else "."))
        else:
            parts.append(f"{place}: {_NEEDED.get(problem['type'], problem['msg'])}.")
    return " ".join(dict.fromkeys(parts))


def _parsed(text: bytes, where: str) -> Any:
    try:
        return parse_yaml(text, where)
    except ValueError as error:
        raise RecipeError(str(error)) from error
