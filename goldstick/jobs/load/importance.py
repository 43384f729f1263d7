"""Importance matrices in GGUF files, and the layers of a model that they are of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from goldstick.algorithms.base import rounds
from goldstick.algorithms.stage import NetworkStage, Rotation
from goldstick.checkpoint.gguf.architecture import Architecture
from goldstick.checkpoint.gguf.architectures import architecture_of_config
from goldstick.checkpoint.gguf.importance import read_importance, write_importance
from goldstick.checkpoint.gguf.names import Place, place_of
from goldstick.core.input_squares import InputSquares
from goldstick.core.whole_file import whole_file
from goldstick.errors import FormatError, OutputError, RecipeError, UsageError
from goldstick.hf.model_in_memory import names_of
from goldstick.recipes.resolve import Assignment, Resolution
from goldstick.structure.network import Network, Site


class GgufPlaces:
    """Where the weights of a transformers model lie in a GGUF file of it.

    Args:
        network: The model's network; it may be on the meta device.

    Raises:
        FormatError: It is of an architecture that goldstick writes no GGUF files of.
    """

    def __init__(self, network: Network) -> None:
        model: Any = network.model
        names = names_of(model)
        if names is None:
            raise FormatError(
                "Importance matrices go by the names of GGUF files, which are of transformers models, and a "
                f"{type(model).__name__} is none."
            )
        self._network, self._names = network, names
        config = model.config.to_dict() | {"architectures": [type(model).__name__]}
        self._architecture: Architecture = architecture_of_config(config)

    def of_tensor(self, name: str) -> Place:
        """Where a tensor of a checkpoint lies."""
        return place_of(name, self._architecture)

    def of_site(self, site: Site) -> list[Place]:
        """Where the matrices of a site lie; of experts that a checkpoint keeps apart one or two places for each."""
        shape = self._network.model.get_parameter(site.parameter_name).shape
        stored = self._names.to_checkpoint({site.parameter_name: torch.empty(shape, device="meta")})
        return [self.of_tensor(name) for name in stored]


def with_given_importance(resolution: Resolution, network: Network) -> Resolution:
    """A resolution whose assignments hold what importance matrices say, where their stages name the file of one.

    Args:
        resolution: What a recipe means for the network.
        network: The network of a transformers model, with or without numbers.

    Raises:
        FormatError: A file is no importance matrix, or none of this model; or the model has no place in GGUF files.
        RecipeError: Another stage changes the inputs that the file is of.
    """
    given = {name: one for name, one in resolution.assignments.items() if one.stage.given_importance is not None}
    if not given:
        return resolution
    refuse_changed_inputs(resolution, "an importance matrix says what the inputs of the model's own layers are")
    places = GgufPlaces(network)
    read: dict[str, Mapping[str, InputSquares]] = {}
    found = dict(resolution.assignments)
    for name, assignment in given.items():
        file = str(assignment.stage.given_importance)
        if file not in read:
            read[file] = _read(file)
        squares = _squares_of(assignment.site, places.of_site(assignment.site), read[file], file)
        found[name] = dataclasses.replace(assignment, importance=squares)
    return dataclasses.replace(resolution, assignments=found)


def of_tensor(assignment: Assignment, name: str, places: GgufPlaces) -> Assignment:
    """An assignment for one tensor of a checkpoint, which may hold a single expert of the site."""
    if assignment.importance is None:
        return assignment
    squares = _of_expert(assignment.importance, places.of_tensor(name).expert)
    return dataclasses.replace(assignment, importance=squares)


def importance_files(resolution: Resolution) -> list[str]:
    """The files of importance matrices that a recipe reads."""
    stages = [stage for stage in resolution.stages if rounds(stage)]
    return [*dict.fromkeys(path for stage in stages if (path := stage.given_importance) is not None)]


def refuse_changed_inputs(resolution: Resolution, why: str) -> None:
    """Refuse stages after which layers have other inputs than those of the model as it was.

    Raises:
        RecipeError: There is one.
    """
    changing = [stage.name for stage in resolution.of(Rotation) + resolution.of(NetworkStage)]
    changing += [step.stage.name for step in resolution.smoothing]
    if changing:
        raise RecipeError(f"{changing[0]} changes the inputs of layers, and {why}. Leave one of them out.")


def save_importance(
    file: Path, found: Mapping[str, InputSquares], network: Network, about: Mapping[str, Any], *, replace: bool
) -> None:
    """Write what a run measured as an importance matrix of the model's GGUF files.

    Args:
        file: Where; it is there whole or not at all.
        found: Site name → the squares of its inputs.
        network: The model's network.
        about: The audit of the calibration data.
        replace: Whether a file of that name may be replaced.

    Raises:
        UsageError: Nothing was measured.
        OutputError: It cannot be written, or exists and ``replace`` is false.
    """
    if not found:
        raise UsageError("Nothing was measured that an importance matrix could hold.")
    places = GgufPlaces(network)
    rows: dict[str, dict[int, InputSquares]] = {}
    for site, squares in found.items():
        for place in places.of_site(network.by_name[site]):
            for name in place.names:
                rows.setdefault(name, {})[place.expert or 0] = _of_expert(squares, place.expert)
    tensors = {name: _stacked([each for _, each in sorted(parts.items())]) for name, parts in rows.items()}
    chunks = int(about.get("samples", 0))
    try:
        with whole_file(file, replace=replace) as unnamed:
            write_importance(
                Path(unnamed.name),
                tensors,
                datasets=[str(about.get("dataset", "calibration"))],
                chunks=chunks,
                chunk_size=int(about.get("tokens", 0)) // max(chunks, 1),
            )
    except FileExistsError as error:
        raise OutputError(
            f"{file} came to exist in the meantime and was left alone. Choose another file for the importance matrix, "
            "or give --overwrite."
        ) from error
    except OSError as error:
        raise OutputError(f"{file} cannot be written: {error.strerror or error}") from error


def _of_expert(squares: InputSquares, number: int | None) -> InputSquares:
    """One expert's, of those of a site that may hold all of them or this one alone; all where it is no expert."""
    return squares if number is None or len(squares.counts) == 1 else squares.of_matrix(number)


def _stacked(parts: list[InputSquares]) -> InputSquares:
    return InputSquares(
        sums=torch.cat([part.sums for part in parts]), counts=torch.cat([part.counts for part in parts])
    )


def _read(file: str) -> Mapping[str, InputSquares]:
    if not Path(file).is_file():
        raise FormatError(f"There is no importance matrix {file!r}.")
    return read_importance(Path(file))


def _squares_of(site: Site, places: list[Place], found: Mapping[str, InputSquares], file: str) -> InputSquares:
    """What a file says of a site, a row for each of its matrices."""
    name = places[0].names[0]
    if name not in found:
        known = f"It holds {', '.join([*found][:3])}, …" if found else "It holds nothing"
        raise FormatError(
            f"The importance matrix {file} lacks {name}, which is {site.name} of this model. {known}: was it made of "
            "another model? Make one of this model, or leave the layer out (targets: {exclude: [...]})."
        )
    squares = found[name]
    matrices = site.matrix_shape[:-2].numel() if len(site.matrix_shape) > 2 else 1
    experts = {place.expert for place in places}
    if experts != {None} and matrices == 1:  # experts that the model keeps in modules of their own
        (number,) = (place.expert for place in places)
        if number is None or number >= len(squares.counts):
            raise _other(file, name, f"{len(squares.counts)} experts", f"an expert {number}")
        squares = squares.of_matrix(number)
    if len(squares.counts) != matrices:
        raise _other(file, name, f"{len(squares.counts)} matrices", f"{matrices}")
    width = squares.sums.shape[-1]
    if width != site.in_features:
        raise _other(file, name, f"inputs of width {width}", f"inputs of width {site.in_features}")
    return squares


def _other(file: str, name: str, there: str, here: str) -> FormatError:
    return FormatError(
        f"The importance matrix {file} was made of another model: {name} has {there} there, and {here} in this model."
    )
