"""Finish: everything a checkpoint holds beside its weights, the proof, and the manifest that binds them."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import goldstick
from goldstick.checkpoint.entries import write_small
from goldstick.checkpoint.file_state import file_sha256 as file_sha256
from goldstick.checkpoint.kv_cache import KV_SIDECAR, StoredKV
from goldstick.checkpoint.sidecars import write_sidecars
from goldstick.checkpoint.unused_tensors import MANIFEST_NAME
from goldstick.core.json_files import dump_json, write_atomically
from goldstick.core.local_paths import without_folders
from goldstick.core.notices import NotRunWarning
from goldstick.core.versions import versions
from goldstick.errors import NotRunError
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.hf.example_inputs import INPUTS_NAME, Inputs, packed_inputs
from goldstick.hf.pruned import is_marked
from goldstick.jobs.proof.observation import Observation
from goldstick.jobs.proof.proof import prove, require
from goldstick.jobs.save.card import accuracy_section, model_card
from goldstick.recipes import Recipe

MANIFEST_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Content:
    """What the files of a checkpoint are made from, beside the weights.

    Attributes:
        config: The model's config.json before quantization; ``None`` for a plain module.
        sidecars: Name → file carried on byte for byte.
        format: The storage format.
        layers: Everything quantized, as stored.
        ignored: Modules whose matrices stay float, as the checkpoint and the model call them.
        ties: Sites that run on another's quantized weight.
        untied: Whether embeddings are no longer tied in the way the config says.
        recipe: The recipe; ``None`` where the checkpoint was exported from one that says nothing of its own.
        source: Name and file hashes of the source.
        base_model: What the card names as the base model.
        errors: Site → error figures of its weight.
        architecture: For a plain module: what it takes to rebuild it.
        kv: What is stored of a quantized KV cache, beside its tensors, which are among the weights.
        described_in: The directory whose README.md is the card of what this was made from, if it has one.
        inputs: What was given to try the model with.
        unused: Float tensors that are carried on though the model has no use for them.
        exported_from: What was exported, where this was not made from a float model: its format and file hashes.
    """

    config: Mapping[str, Any] | None
    sidecars: Mapping[str, Path]
    format: StorageFormat
    layers: Sequence[StoredLayer]
    ignored: Sequence[str]
    ties: Mapping[str, str]
    untied: bool
    recipe: Recipe | None
    source: Mapping[str, Any]
    base_model: str
    errors: Mapping[str, Mapping[str, float | None]]
    architecture: Mapping[str, Any] = field(default_factory=dict)
    kv: StoredKV | None = None
    described_in: Path | None = None
    unused: Sequence[str] = ()
    inputs: Inputs | None = None
    exported_from: Mapping[str, Any] = field(default_factory=dict)


def write_rest(work: Path, content: Content, hashes: dict[str, str]) -> None:
    """Write config, sidecars, card and a manifest without proof; ``hashes`` holds and receives the files' sha256."""
    table = content.format.config(content.layers, content.ignored, content.ties)
    if content.kv is not None:
        table |= content.kv.config
        hashes[KV_SIDECAR] = write_small(work / KV_SIDECAR, content.kv.sidecar)
    if content.config is not None:
        # What is only rotated is a float checkpoint, to be read as one; cuts are done again by goldstick's quantizer.
        quantized = bool(content.layers) or content.kv is not None or is_marked(content.config)
        config = dict(content.config) | (dict.fromkeys(content.format.config_keys, table) if quantized else {})
        embeddings = {layer.site for layer in content.layers if layer.kind == "embedding"}
        on_embedding = embeddings & set(content.ties.values()) and not content.format.head_on_embedding
        if content.untied or on_embedding:
            config["tie_word_embeddings"] = False
        hashes["config.json"] = write_small(work / "config.json", dump_json(config).encode())
    if content.inputs is not None:
        hashes[INPUTS_NAME] = write_small(work / INPUTS_NAME, packed_inputs(content.inputs))
    hashes |= write_sidecars(work, content.sidecars)
    about = content.base_model, content.recipe, content.format, content.config
    card = model_card(*about, source=content.described_in, layers=content.layers)
    hashes["README.md"] = write_small(work / "README.md", card.encode(errors="backslashreplace"))
    manifest = {
        "manifest_version": MANIFEST_VERSION,
        "goldstick": goldstick.__version__,
        "format": content.format.name,
        "quantization": table,
        "kv_cache": content.kv.label if content.kv else None,
        "architecture": dict(content.architecture),
        "source": dict(content.source),
        "recipe": _told(content.recipe),
        **({"unused": list(content.unused)} if content.unused else {}),
        **({"exported_from": dict(content.exported_from)} if content.exported_from else {}),
        "layers": {
            layer.site: {"scheme": layer.scheme.label, **content.errors.get(layer.site, {})} for layer in content.layers
        },
        "files": dict(sorted(hashes.items())),
        "environment": versions(),
    }
    write_small(work / MANIFEST_NAME, dump_json(manifest).encode())


def _told(recipe: Recipe | None) -> dict[str, Any] | None:
    """A recipe as the manifest holds it: its stages as they are, since proofs repeat them; no folders of its data."""
    found = recipe.model_dump(mode="json") if recipe else None
    return found and {**without_folders(found), "stages": found["stages"]}


def prove_and_record(
    work: Path, request: Mapping[str, Any], expected: Observation | None, not_run: str = ""
) -> dict[str, Any]:
    """Prove what lies in ``work`` and write the findings into its manifest.

    Where outputs were to be compared and the model does not run, what can be proven without it is, and that is said.

    Args:
        work: The checkpoint.
        request: See :func:`goldstick.jobs.proof.proof.prove`; what is ``fallback`` in it takes its place there.
        expected: What the model in memory gave.
        not_run: Why it gave nothing, where it did not run.

    Raises:
        CheckpointError: The proof failed, or could not be made.

    Warns:
        NotRunWarning: The model does not run.
    """
    fallback = {"method": "files", **request.get("fallback", {})}
    request = {name: value for name, value in request.items() if name != "fallback"}

    def without_outputs() -> dict[str, Any]:
        files = json.loads((work / MANIFEST_NAME).read_text(encoding="utf-8"))["files"]
        return prove(work, {**request, **fallback, "files": files}, None)

    try:
        if not_run:
            raise NotRunError(not_run)
        proof = prove(work, request, expected)
    except NotRunError as error:
        proof = without_outputs() | {"not_run": str(error)}
    if proof.pop("close", False) and not proof["passed"]:  # some networks make much of the last bits
        stored = without_outputs()
        proof |= {"passed": stored["passed"], "stored": stored}
    require(proof, work)
    if "not_run" in proof:
        what = "Every tensor" if proof["method"] == "tensors" else "Every file and every quantized layer"
        warnings.warn(
            f"The outputs of this checkpoint are not proven, since the model could not be run ({proof['not_run']}). "
            f"{what} read back is what was written. To prove more, give inputs that it runs on: --inputs FILE (inputs= "
            "in Python).",
            NotRunWarning,
            stacklevel=2,
        )
    record_proof(work, proof)
    return proof


def record_proof(work: Path, proof: Mapping[str, Any]) -> None:
    """Write the findings of a proof that passed into the manifest in ``work``."""
    manifest = json.loads((work / MANIFEST_NAME).read_text(encoding="utf-8"))
    write_atomically(work / MANIFEST_NAME, dump_json(manifest | {"proof": dict(proof)}).encode())


def add_accuracy(work: Path, evaluation: Mapping[str, Any]) -> None:
    """Let the card in ``work`` say what an evaluation found (``before`` and ``after``)."""
    card = ((work / "README.md").read_text(encoding="utf-8") + accuracy_section(evaluation)).encode()
    write_atomically(work / "README.md", card)
    manifest = json.loads((work / MANIFEST_NAME).read_text(encoding="utf-8"))
    manifest["files"]["README.md"] = hashlib.sha256(card).hexdigest()
    write_atomically(work / MANIFEST_NAME, dump_json(manifest).encode())
