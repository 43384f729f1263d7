"""The model card: a README.md with the front matter that hubs read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from goldstick.core.local_paths import last_part, without_folders
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.jobs.load.front_matter import CARRIED, front_matter
from goldstick.jobs.load.front_matter import card_remarks as card_remarks
from goldstick.recipes import Recipe
from goldstick.report.accuracy_view import accuracy_view

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")

_CARD = """\
# {{ title }}, compressed with goldstick

Made from `{{ base_model }}`{{ " with the recipe below" if recipe }}; the checkpoint is stored as *{{ format }}*.
{% if recipe %}
```yaml
{{ recipe }}```
{% endif %}
{{ loading }}

`goldstick.json` holds the sha256 of every file and the proof that the checkpoint, read back in a fresh process, gives
what the model in memory gave. `goldstick verify` repeats both.
"""

_ACCURACY = """
## Accuracy

| task | metric | before | after | difference | 95 % interval |
|---|---|---|---|---|---|
{% for row in rows -%}
| {{ row.task }} | {{ row.metric }}, {{ row.better }} | {{ row.before }} | {{ row.value }} | {{ row.difference }} \
| {{ row.difference_interval or row.interval }} |
{% endfor %}
{{ summary }} The intervals are of the difference over the same items; `report.json` has the protocols.
"""


def model_card(
    base_model: str,
    recipe: Recipe | None,
    storage: StorageFormat,
    config: Mapping[str, Any] | None,
    source: Path | None = None,
    layers: Sequence[StoredLayer] = (),
) -> str:
    """The text of a checkpoint's README.md.

    The front matter names the base model where that is a hub id, since hubs refuse anything else there, and carries on
    the licence and languages of the source's own card. Absolute paths are told by their last part.

    Args:
        base_model: What was compressed, as the user named it.
        recipe: The recipe; ``None`` where it is not known.
        storage: The storage format.
        config: The model's config.json; ``None`` for a plain module.
        source: Directory whose README.md is the card of what this was made from.
        layers: Everything quantized, as stored.
    """
    import yaml
    from huggingface_hub import ModelCardData

    former, _ = front_matter(source / "README.md") if source is not None else ({}, None)
    base_model = base_model.encode(errors="replace").decode()  # a path may hold bytes that are no text
    known = former.get("base_model") if former.get("base_model_relation") == "quantized" else None
    if _HUB_ID.fullmatch(base_model) and not Path(base_model).exists():
        known = base_model
    fields: dict[str, Any] = {key: former[key] for key in CARRIED if key in former}
    if known:
        fields |= {"base_model": known, "base_model_relation": "quantized"}
    if _generates_text(config):
        fields["pipeline_tag"] = "text-generation"
    data = ModelCardData(
        **fields,
        library_name="transformers" if config else "goldstick",
        tags=["goldstick", storage.name, *sorted({stage.name for stage in recipe.stages} if recipe else ())],
    )
    written = without_folders(recipe.model_dump(mode="json", exclude_defaults=True)) if recipe else {}
    body = jinja2.Template(_CARD, keep_trailing_newline=True).render(
        title=base_model.rstrip("/").rsplit("/", 1)[-1],
        base_model=last_part(base_model),
        format=storage.name,
        loading=storage.loading_of(layers),
        recipe=yaml.safe_dump(written, sort_keys=False) if recipe else "",
    )
    return f"---\n{data.to_yaml()}\n---\n{body}"


def accuracy_section(evaluation: Mapping[str, Any]) -> str:
    """What a card says of an evaluation (the ``evaluation`` of a report): each metric before and after."""
    view = accuracy_view(evaluation["after"], evaluation["before"], evaluation.get("divergence"))
    if view is None:
        return ""
    template = jinja2.Template(_ACCURACY, keep_trailing_newline=True)
    text: str = template.render(rows=view["rows"], summary=view["summary"])
    return text


def _generates_text(config: Mapping[str, Any] | None) -> bool:
    names = (config or {}).get("architectures")
    return isinstance(names, list) and any(str(name).endswith("ForCausalLM") for name in names)
