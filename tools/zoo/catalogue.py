"""Which architectures there are: every class of transformers' auto classes, under the kind of its task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

#: Kinds by the names of transformers' tables. A class stands under the first kind that has it.
TABLES = {
    "sequence to sequence": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM",
    "image classification": "MODEL_FOR_IMAGE_CLASSIFICATION",
    "video classification": "MODEL_FOR_VIDEO_CLASSIFICATION",
    "semantic segmentation": "MODEL_FOR_SEMANTIC_SEGMENTATION",
    "universal segmentation": "MODEL_FOR_UNIVERSAL_SEGMENTATION",
    "instance segmentation": "MODEL_FOR_INSTANCE_SEGMENTATION",
    "object detection": "MODEL_FOR_OBJECT_DETECTION",
    "depth estimation": "MODEL_FOR_DEPTH_ESTIMATION",
    "speech to text": "MODEL_FOR_SPEECH_SEQ_2_SEQ",
    "connectionist speech": "MODEL_FOR_CTC",
    "audio classification": "MODEL_FOR_AUDIO_CLASSIFICATION",
    "time series": "MODEL_FOR_TIME_SERIES_PREDICTION",
    "image and text": "MODEL_FOR_IMAGE_TEXT_TO_TEXT",
    "masked language": "MODEL_FOR_MASKED_LM",
    "causal language": "MODEL_FOR_CAUSAL_LM",
    "without a head": "MODEL",
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A class of models, and the type of its config."""

    kind: str
    config: str
    model: str

    @property
    def name(self) -> str:
        """What it is called on the command line and in the tables."""
        return self.model

    def default_config(self) -> Any:
        """Its config as transformers makes it of nothing."""
        return CONFIG_MAPPING[self.config]()

    def model_class(self) -> Any:
        """The class; importing it takes a moment."""
        import transformers

        return getattr(transformers, self.model)


def architectures(names: Sequence[str] = ()) -> list[Architecture]:
    """Every architecture, or those whose class or type of config is named; without a head only where none has one.

    Raises:
        ValueError: There is none of a name.
    """
    found: dict[str, Architecture] = {}
    with_heads: set[str] = set()
    for kind, table in TABLES.items():
        for config, models in getattr(modeling_auto, f"{table}_MAPPING_NAMES").items():
            if config not in CONFIG_MAPPING or (table == "MODEL" and config in with_heads):
                continue
            for model in [models] if isinstance(models, str) else models:
                before = found.get(model)
                if before is None or (before.kind == kind and _called(config, model) > _called(before.config, model)):
                    found[model] = Architecture(kind=kind, config=config, model=model)
            with_heads.add(config)
    chosen = [one for one in found.values() if not names or one.model in names or one.config in names]
    unknown = set(names) - {one.model for one in chosen} - {one.config for one in chosen}
    if unknown:
        raise ValueError(f"transformers has no {', '.join(sorted(unknown))}.")
    return chosen


def _called(config: str, model: str) -> int:
    """How many letters of the name of a class are that of a type of config; of several types one is the class's own."""
    name = config.replace("_", "").replace("-", "").lower()
    return len(name) if model.lower().startswith(name) else 0
