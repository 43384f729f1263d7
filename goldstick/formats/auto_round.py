"""What auto-round writes by default (``quant_method: auto-round``), and transformers (with its package) and vLLM read.

Its layers are laid out as others lay them out, as ``packing_format`` says: as version 1 of GPTQ without ``g_idx``
(:mod:`goldstick.formats.gptq`) where they are symmetric, as AWQ (:mod:`goldstick.formats.awq`) where they are not. Its
config names one scheme for all layers of the blocks, and under ``extra_config`` what other layers have, by names or by
regular expressions that are searched in names; ``bits: 16`` there is a layer that stays float.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from reprlib import repr as shown
from typing import Any, ClassVar

from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError
from goldstick.formats.awq import Awq, awq_scheme, stored_zeros
from goldstick.formats.base import SchemeOf, StaysFloat, StorageFormat, StoredLayer, StoredTensor
from goldstick.formats.gptq import BITS, Gptq
from goldstick.formats.name_matching import NamePatterns
from goldstick.formats.weight_only import declared_grid, refuses_joined, stored_group_size

_METHODS = ("auto-round", "intel/auto-round")
_SYMMETRIC, _ASYMMETRIC = "auto_round:auto_gptq", "auto_round:auto_awq"
#: How a packing is named → how it is stored; of versions before 0.5 under ``backend``.
_PACKINGS = {
    _SYMMETRIC: _SYMMETRIC,
    "auto_round:gptq": _SYMMETRIC,
    "auto_round:gptq:exllamav2": _SYMMETRIC,
    "auto_round:auto_gptq:exllamav2": _SYMMETRIC,
    _ASYMMETRIC: _ASYMMETRIC,
    "auto_round:awq": _ASYMMETRIC,
}
_FLOAT_BITS = 16
_SPECIAL = re.compile(r"[*+?^$()\[\]{}|\\]")
_LOADING = (
    "Load it with `goldstick.load(directory)`, with vLLM, or with transformers: `import goldstick` before "
    "`from_pretrained`\nor install the package auto-round."
)


class _AutoRound(StorageFormat):
    """The config of both packings."""

    method = _METHODS[0]
    title: ClassVar[str] = "auto-round"
    packages: ClassVar[tuple[str, ...]] = ("auto_round",)
    loading: ClassVar[str] = _LOADING
    holds_order: ClassVar[bool] = False
    packing: ClassVar[str]

    def refuses_together(self, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> str | None:
        """Ties and joined layers, which it has no word for; schemes may be several."""
        return refuses_joined(layers, ties, self.title)

    def config(self, layers: Sequence[StoredLayer], ignored: Sequence[str], ties: Mapping[str, str]) -> dict[str, Any]:
        """``quant_method: auto-round``: the most frequent scheme, and under ``extra_config`` what differs from it."""
        if reason := self.refuses_together(layers, ties):
            raise FormatError(f"{self.name} cannot hold this: {reason}.")
        said = {layer.name.removesuffix(".weight"): _words(layer) for layer in layers}
        usual = max(said.values(), key=list(said.values()).count)
        others = {name: words for name, words in said.items() if words != usual or not _in_blocks(name)}
        floats = {name: {"bits": _FLOAT_BITS, "data_type": "float"} for name in sorted(ignored)}
        extra = {**floats, **others}
        return {
            "quant_method": self.method,
            "packing_format": self.packing,
            **usual,
            **({"extra_config": extra} if extra else {}),
        }

    def claims(self, config: Mapping[str, Any]) -> bool:
        """Whether it is auto-round's, in this packing.

        Raises:
            FormatError: It is auto-round's in a packing that goldstick does not read.
        """
        if config.get("quant_method") not in _METHODS:
            return False
        said = {key: value for key, value in config.items() if value is not None}
        packing = said.get("packing_format", said.get("backend", _SYMMETRIC))
        kind, input_bits = said.get("data_type", "int"), said.get("act_bits", _FLOAT_BITS)
        found = _PACKINGS.get(packing) if isinstance(packing, str) else None
        if found is None or kind != "int" or input_bits != _FLOAT_BITS:
            raise FormatError(
                f"The auto-round config declares the packing {shown(packing)} of {shown(kind)} weights and inputs of "
                f"{shown(input_bits)} bits; goldstick reads {_SYMMETRIC} and {_ASYMMETRIC} of integers with float "
                "inputs. Export it with auto-round as auto_gptq, auto_awq or llm_compressor."
            )
        return found == self.packing

    def stays_float(self, config: Mapping[str, Any]) -> StaysFloat:
        """Modules that have 16 bits, and what is not named and lies outside the blocks, or those that it lists."""
        told, listed = _told(config), _listed_blocks(config)

        def stays_float(module: str, in_block: bool | None) -> bool:
            named = told(module)
            if named is None:
                return in_block is False or bool(listed and not module.startswith(listed))
            return bool(named.get("bits", config.get("bits")) == _FLOAT_BITS)

        return stays_float

    def declared(self, config: Mapping[str, Any]) -> Callable[[str], Mapping[str, Any]]:
        """A function from a quantized module to what the config says of it.

        Raises:
            FormatError: The config makes no sense, or, from the function, says that the module is not quantized.
        """
        told = _told(config)

        def of(module: str) -> Mapping[str, Any]:
            found = {**config, **(told(module) or {})}
            if found.get("bits") == _FLOAT_BITS or found.get("data_type", "int") != "int":
                raise FormatError(
                    f"The auto-round config gives {module} {shown(found.get('bits'))} bits of "
                    f"{shown(found.get('data_type', 'int'))}, and it is stored as integers."
                )
            return found

        return of


class AutoRoundGptq(_AutoRound, Gptq):
    """Symmetric layers, packed as GPTQ packs them."""

    packing = _SYMMETRIC

    def __init__(self) -> None:
        super().__init__(version=1)
        self.name = "auto-round"

    def schemes(self, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SchemeOf:
        """What the config says of each."""
        declared = self.declared(config)

        def scheme_of(codes: str, site: str) -> Scheme:
            found = declared(codes.removesuffix(self.codes_suffix))
            if found.get("sym", True) is not True:
                raise FormatError(f"auto-round packs asymmetric layers as AWQ does, and {codes} is packed as GPTQ's.")
            return Scheme(weight=declared_grid(found, BITS, True, self.title))

        return scheme_of


class AutoRoundAwq(_AutoRound, Awq):
    """Layers with zeros, packed as AWQ packs them."""

    name = "auto-round-awq"
    packing = _ASYMMETRIC

    def schemes(self, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SchemeOf:
        """What the config says of each, and its zeros of symmetry."""
        declared = self.declared(config)

        def scheme_of(codes: str, site: str) -> Scheme:
            found = declared(codes.removesuffix(self.codes_suffix))
            return awq_scheme(found, stored_zeros(codes, tensors))

        return scheme_of


AUTO_ROUND, AUTO_ROUND_AWQ = AutoRoundGptq(), AutoRoundAwq()


def _words(layer: StoredLayer) -> dict[str, Any]:
    grid = layer.scheme.weight
    return {"bits": grid.bits, "group_size": stored_group_size(grid), "sym": grid.symmetric, "data_type": "int"}


def _in_blocks(module: str) -> bool:
    """Whether readers quantize a module without being told: those of blocks have a number in their name."""
    return any(part.isdecimal() for part in module.split("."))


def _listed_blocks(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What the names of quantized layers begin with; empty where the config lists no blocks.

    Raises:
        FormatError: The list makes no sense.
    """
    listed = config.get("block_name_to_quantize") or []
    items = listed.split(",") if isinstance(listed, str) else listed
    if isinstance(items, list):  # which of models of several parts holds a list for each
        names = [one for item in items for one in (item if isinstance(item, list) else [item])]
        if all(isinstance(name, str) for name in names):
            return tuple(name.strip() for name in names)
    raise FormatError(f"The auto-round config's 'block_name_to_quantize' lists names, not {shown(listed)}.")


def _told(config: Mapping[str, Any]) -> Callable[[str], Mapping[str, Any] | None]:
    """A function from a module to what ``extra_config`` says of it, by its name or by the first pattern found in it."""
    extra = config.get("extra_config") or {}
    if not isinstance(extra, Mapping) or not all(isinstance(words, Mapping) for words in extra.values()):
        raise FormatError(f"The auto-round config's 'extra_config' is a table of layers, not {shown(extra)}.")
    searched = [name for name in extra if _SPECIAL.search(name)]
    patterns = NamePatterns([f"re:.*{name}" if not name.startswith("^") else f"re:{name}" for name in searched])

    def told(module: str) -> Mapping[str, Any] | None:
        if module in extra:
            return extra[module]  # type: ignore[no-any-return]
        place = patterns.first(module)
        return None if place is None else extra[searched[place]]

    return told
