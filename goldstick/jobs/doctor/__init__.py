"""Doctor: what is wrong with a checkpoint of any tool, found in its config, its headers and its numbers."""

from goldstick.jobs.doctor.examine import examine
from goldstick.jobs.doctor.finding import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding", "examine"]
