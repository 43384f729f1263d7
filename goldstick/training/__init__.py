"""Training: the small loop that drives stand-ins for layers, and fine-tunes what was cut."""

from goldstick.training.distillation import agreement, distilled
from goldstick.training.loop import TrainingRecord, train
from goldstick.training.task import TrainingTask

__all__ = ["TrainingRecord", "TrainingTask", "agreement", "distilled", "train"]
