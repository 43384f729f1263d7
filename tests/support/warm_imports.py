"""What the process imports from which :mod:`tests.support.warm_processes` forks."""

from __future__ import annotations

from goldstick.jobs.proof import worker

worker.prepare()
