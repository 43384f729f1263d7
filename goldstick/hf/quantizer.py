"""Loading through transformers: the quantizer that puts goldstick's modules in place while a checkpoint is read.

transformers reads the tensors, names and all; this file gives it places to put them (:class:`StoredWeight`) and turns
each into a module on packed weights afterwards. It serves ``quant_method: goldstick`` and, through
:mod:`goldstick.hf.loading`, compressed-tensors, GPTQ, AWQ and GGUF checkpoints alike. The hooks it overrides moved
between minor versions of transformers 5, so they are used here only. Wherever transformers is imported after goldstick,
this file is, too; what runs models (surgery, modules, kernels) waits until one is loaded.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    AUTO_QUANTIZER_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer
from transformers.utils import hub, logging
from transformers.utils.quantization_config import QuantizationConfigMixin

from goldstick.checkpoint.kv_cache import read_kv
from goldstick.core.edits import Quantize
from goldstick.core.layout import Layout
from goldstick.core.qtensor import scale_dtype
from goldstick.core.scheme import Scheme
from goldstick.errors import CheckpointError
from goldstick.formats import FORMATS
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.formats.input_scale import part_name, unpack_multiplier
from goldstick.formats.native import NATIVE
from goldstick.formats.site_table import read_table
from goldstick.hf.cache import use_quantized_cache
from goldstick.hf.dequantizing import Dequantizes
from goldstick.hf.fetched import fetch_cache_scales
from goldstick.hf.names import CheckpointNames
from goldstick.hf.other_class import is_of_another_class, table_for
from goldstick.hf.packed_conversions import with_packed_tensors
from goldstick.hf.pruned import cut_as_told, restore_as_told
from goldstick.hf.stored_weight import StoredWeight, nothing
from goldstick.hf.unpacked import refuse_casts_to_codes, require_read, unpack_read
from goldstick.structure.network import Network, Site
from goldstick.structure.rotation.online import turn_input

METHOD = NATIVE.method
logger = logging.get_logger(__name__)


class GoldstickConfig(QuantizationConfigMixin):
    """The ``quantization_config`` of the native format, or one translated from another format.

    Args:
        version: Version of the native format.
        schemes: Label → scheme.
        sites: Name of every quantized site → label.
        ties: Site → the one on whose quantized weight it runs.
        storage: Storage format whose tensors the files hold; ``None`` where transformers read this config from a file.
        multiplied: Sites whose input is multiplied.
        reordered: Sites whose columns lie in an order of their own.
        unused: Tensors, by the names they would have in the model, that are carried on for nothing.
        rotated: Sites whose input is turned at run time → channels that are mixed.
    """

    def __init__(
        self,
        version: int = 1,
        schemes: dict[str, Any] | None = None,
        sites: dict[str, str] | None = None,
        ties: dict[str, str] | None = None,
        storage: str | None = None,
        multiplied: Sequence[str] = (),
        reordered: Sequence[str] = (),
        unused: Sequence[str] = (),
        rotated: dict[str, int] | None = None,
        **_: Any,
    ) -> None:
        self.quant_method = METHOD  # type: ignore[assignment]  # transformers lists its own methods only
        self.version = version
        self.schemes, self.sites, self.ties = schemes or {}, sites or {}, ties or {}
        self.storage = storage
        self.multiplied, self.reordered = list(multiplied), list(reordered)
        self.unused, self.rotated = list(unused), rotated or {}

    def to_dict(self) -> dict[str, Any]:
        """The table as the native format writes it."""
        optional = ("storage", "multiplied", "reordered", "unused", "rotated")
        return {key: value for key, value in super().to_dict().items() if value or key not in optional}

    def get(self, key: str, default: Any = None) -> Any:
        """An entry: transformers asks so where it is given the config of a loaded model for another one."""
        return self.to_dict().get(key, default)


class GoldstickQuantizer(Dequantizes, HfQuantizer):
    """Puts places for packed tensors into the empty model, and modules that run on them afterwards."""

    requires_calibration = True
    quantization_config: GoldstickConfig
    #: Blocks that are read later, one at a time.
    postponed: tuple[str, ...] = ()
    directory: Path | None = None

    def __init__(self, quantization_config: GoldstickConfig, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        #: What the files say, which the model's config goes on saying, whatever it means for the model.
        self.told = quantization_config

    def _process_model_before_weight_loading(self, model: Any, checkpoint_files: Any = None, **_: Any) -> None:
        if checkpoint_files:
            self.directory = Path(checkpoint_files[0]).parent
            fetch_cache_scales(self.directory, model, hub.cached_file)
        cut_as_told(model)
        self.network, self.names = Network(model), CheckpointNames(model)
        storage = self.quantization_config.storage
        self.format: StorageFormat = NATIVE if storage is None else FORMATS[storage]
        if is_of_another_class(model):
            fitted = table_for(self.network, self.quantization_config.to_dict())
            self.quantization_config = GoldstickConfig(**fitted)
        self.listed = read_table(self.quantization_config.to_dict())
        self.schemes = self.listed.schemes
        self.suffixes: dict[str, tuple[str, ...]] = {}
        unknown = set(self.schemes) - set(self.network.by_name)
        if unknown:
            raise CheckpointError(f"The checkpoint quantizes {sorted(unknown)[0]!r}, which the model does not have.")
        self.biases: dict[str, nn.Parameter | None] = {}
        for name, scheme in self.schemes.items():
            self._place(self.network.by_name[name], scheme)
        # What stands beside the codes of experts and has no place beside those of the fused weight: their shapes.
        beside = sorted({*self.format.expert_suffixes} - {*NATIVE.expert_suffixes})
        unused = {rf"^{re.escape(name)}$" for name in self.quantization_config.unused}
        ignored = {*(model._keys_to_ignore_on_load_unexpected or ()), *unused}
        # Scales of the KV cache belong to no module: see transformers_loading.
        expected = {rf"\.experts\..*{suffix}$" for suffix in beside}
        model._keys_to_ignore_on_load_unexpected = {*ignored, *expected, r"\.[kv]_scale$"}
        self._make_room_for_ties()

    def _make_room_for_ties(self) -> None:
        from goldstick import surgery

        ties, sites = self.quantization_config.ties, self.network.by_name
        on_embeddings = {tied for tied, owner in ties.items() if sites[owner].layout is Layout.EMBEDDING}
        for tied in ties:
            module = self.network.module(sites[tied])
            _replace(self.network.model, sites[tied].module, StoredWeight.in_place_of(module, {}))
        if on_embeddings:
            surgery.forget_ties(self.network)
        elif ties:
            surgery.forget_ties(self.network, ties)

    def _place(self, site: Site, scheme: Scheme) -> None:
        layer = StoredLayer(
            name=site.parameter_name,
            site=site.name,
            kind=site.layout.value,
            shape=site.matrix_shape,
            scheme=scheme,
            fractional_zeros=False,
            multiplied=site.name in self.listed.multiplied,
            act_order=site.name in self.listed.act_order,
        )
        module = self.network.module(site)
        parameter = getattr(module, site.parameter)
        stored_in = scale_dtype(parameter.dtype)
        # Experts are gathered into one tensor of rows whatever the format.
        specs = (NATIVE if site.layout.fused else self.format).specs(layer, stored_in)
        if site.layout.fused and scheme.weight.tensor_scaled:  # each of the matrices that are stacked in it has its own
            stacked = self.names.stacked(site.parameter_name, site.matrix_shape[0])
            specs["_global_scale"] = torch.Size([site.matrix_shape[0], stacked, 1]), torch.float32
        self.suffixes[site.name] = tuple(specs)
        parts = {suffix: torch.empty(shape, dtype=dtype, device="meta") for suffix, (shape, dtype) in specs.items()}
        if _held_beside(site):
            del module._parameters[site.parameter]
            setattr(module, site.parameter, nothing(parameter))  # initialisers of some models reach for it
            for suffix, part in parts.items():
                module.register_buffer(site.parameter + suffix, part)
        else:
            _replace(self.network.model, site.module, StoredWeight.in_place_of(module, parts))

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any) -> list[Any]:
        """Let every conversion of ``….weight`` into (a part of) a fused parameter take our tensors, too."""
        suffixes = dict.fromkeys((*self.format.expert_suffixes, *NATIVE.expert_suffixes))
        return with_packed_tensors(weight_conversions, tuple(suffixes))

    def get_new_dtype(self, converter: Any, param: Any, dtype: Any) -> Any:
        """What transformers casts a tensor to: numbers never to codes."""
        found = super().get_new_dtype(converter, param, dtype)
        refuse_casts_to_codes(converter, param, found, {suffix for held in self.suffixes.values() for suffix in held})
        return found

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        from goldstick import surgery

        restore_as_told(model)
        model.config.quantization_config = self.told
        model.quantization_method = METHOD  # that of its layers, whatever the files are
        for name, scheme in self.schemes.items():
            if self.network.by_name[name].block not in self.postponed:
                self._finish(self.network.by_name[name], scheme)
        for tied, owner in self.quantization_config.ties.items():
            place = self.network.module(self.network.by_name[tied])
            if isinstance(place, StoredWeight):
                _replace(model, self.network.by_name[tied].module, place.restored())
            surgery.tie(self.network, self.network.by_name[tied], self.network.by_name[owner])
        if self.quantization_config.storage is None and self.directory is not None:
            kv = read_kv(self.directory, {})
            if kv is not None:
                use_quantized_cache(model, kv)
        return model

    def finish(self, block: str) -> None:
        """Let the layers of a postponed block run on the tensors that were just read."""
        for name, scheme in self.schemes.items():
            if self.network.by_name[name].block == block:
                self._finish(self.network.by_name[name], scheme)

    def _finish(self, site: Site, scheme: Scheme) -> None:
        place: Any = self.network.module(site)
        prefix = site.parameter if _held_beside(site) else "weight"
        names = {part_name(prefix, suffix).removeprefix("."): suffix for suffix in self.suffixes[site.name]}
        parts = {names[name]: part for name, part in place._buffers.items() if part is not None and name in names}
        require_read(parts, place, site)
        storage = NATIVE if site.layout.fused else self.format
        input_scale, input_zero = storage.unpack_input(parts, scheme, site.module)
        multiplier = unpack_multiplier(parts, site.name in self.listed.multiplied, site.module)
        tensor = unpack_read(parts, scheme, site, storage)
        if _held_beside(site):
            # Stored as codes, or float16 as those of GPTQ and AWQ, and computed with in the model's dtype.
            tensor = dataclasses.replace(tensor, scale=tensor.scale.to(site.dtype))
            for suffix in parts:
                del place._buffers[prefix + suffix]
            delattr(place, site.parameter)
            place.register_parameter(
                site.parameter, nn.Parameter(torch.empty(site.shape, device="meta"), requires_grad=False)
            )
        else:
            original = place.restored()
            # GPTQ, AWQ and GGUF store float16 scales whatever the model computes in.
            tensor = dataclasses.replace(tensor, scale=tensor.scale.to(getattr(original, site.parameter).dtype))
            _replace(self.network.model, site.module, original)
        edit = Quantize(
            site=site.name,
            scheme=scheme,
            tensor=tensor,
            algorithm="loaded",
            input_scale=input_scale,
            input_zero=input_zero,
            input_multiplier=multiplier,
        )
        from goldstick import surgery

        turn_input(self.network, site, self.listed.rotated.get(site.name, 0))
        surgery.apply(self.network, [edit])

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        """Saving goes through goldstick, which proves what it writes; transformers lets a warning say so."""
        logger.warning(
            "A model on packed weights is saved by goldstick alone. Its checkpoint is the one that it was loaded "
            "from%s: copy that, or have goldstick.export write it in another format or push it.",
            f", {self.directory}" if self.directory else "",
        )
        return False

    @property
    def is_trainable(self) -> bool:
        """Adapters beside it are, through it; codes have no gradient, and transformers refuses training without any."""
        return True

    @property
    def is_compileable(self) -> bool:
        """The operators have fake implementations."""
        return True


if METHOD not in AUTO_QUANTIZATION_CONFIG_MAPPING:  # a reloaded module must not register twice
    register_quantization_config(METHOD)(GoldstickConfig)
    register_quantizer(METHOD)(GoldstickQuantizer)


def take_over(method: str, config: type[GoldstickConfig], quantizer: type[GoldstickQuantizer]) -> None:
    """Let a quantizer of goldstick's serve a method, whoever did so before."""
    AUTO_QUANTIZATION_CONFIG_MAPPING[method] = config
    AUTO_QUANTIZER_MAPPING[method] = quantizer


def _held_beside(site: Site) -> bool:
    """Whether its module stays in its place, since it holds other parameters too."""
    return site.layout.fused or site.parameter != "weight"


def _replace(model: nn.Module, path: str, new: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, new)
