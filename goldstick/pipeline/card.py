"""The model card: a README.md with the front matter that hubs read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jinja2

from goldstick.recipes import Recipe

_CARD = """\
# {{ title }}, compressed with goldstick

Made from `{{ base_model }}`{{ " with the recipe below" if recipe }}; the checkpoint is stored as *{{ format }}*.
{% if recipe %}
```yaml
{{ recipe }}```
{% endif %}
{% if format == "compressed-tensors" -%}
Load it with transformers and compressed-tensors, with vLLM, or with `goldstick.load(directory)`.
{%- elif format in ("gptq", "gptq-v2", "awq") -%}
Load it with `goldstick.load(directory)`, with vLLM, or with transformers and the packages it asks for (gptqmodel, and
optimum for GPTQ).
{%- elif format == "gguf" -%}
Run `model.gguf` with llama.cpp, load the directory with `goldstick.load(directory)`, or with transformers and the
packages gguf and accelerate: `from_pretrained(directory, gguf_file="model.gguf")`, which runs it in float.
{%- else -%}
Load it with `goldstick.load(directory)`, or `import goldstick` before transformers' `from_pretrained`: without
goldstick, transformers initialises the compressed layers at random.
{%- endif %}

`goldstick.json` holds the sha256 of every file and the proof that the checkpoint, read back in a fresh process, gives
what the model in memory gave. `goldstick verify` repeats both.
"""


def model_card(base_model: str, recipe: Recipe | None, format_name: str, config: Mapping[str, Any] | None) -> str:
    """The text of a checkpoint's README.md."""
    import yaml
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        base_model=base_model,
        base_model_relation="quantized",
        library_name="transformers" if config else "goldstick",
        tags=["goldstick", format_name, *sorted({stage.name for stage in recipe.stages} if recipe else ())],
    )
    body = jinja2.Template(_CARD, keep_trailing_newline=True).render(
        title=base_model.rstrip("/").rsplit("/", 1)[-1],
        base_model=base_model,
        format=format_name,
        recipe=yaml.safe_dump(recipe.model_dump(mode="json", exclude_defaults=True), sort_keys=False) if recipe else "",
    )
    return f"---\n{data.to_yaml()}\n---\n{body}"
