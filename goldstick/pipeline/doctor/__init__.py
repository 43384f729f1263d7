"""Doctor: what is wrong with a checkpoint of any tool, found in its config, its headers and its numbers."""

from goldstick.pipeline.doctor.examine import examine
from goldstick.pipeline.doctor.finding import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding", "examine"]
