"""All real models by name."""

from __future__ import annotations

from tools.real_models.embeddings import EMBEDDINGS
from tools.real_models.model import RealModel
from tools.real_models.pictures import PICTURES
from tools.real_models.printed_lines import PRINTED_LINES
from tools.real_models.voice_activity import VOICE_ACTIVITY
from tools.real_models.whisper import WHISPER

MODELS: dict[str, RealModel] = {one.name: one for one in (WHISPER, EMBEDDINGS, VOICE_ACTIVITY, PRINTED_LINES, PICTURES)}
