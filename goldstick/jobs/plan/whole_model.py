"""Plans that hold the whole model in memory: why, and what becomes of a run that is stopped."""

from __future__ import annotations

from goldstick.recipes.resolve import Resolution


def whole_model_warning(resolution: Resolution, calibrated: bool) -> str:
    """The warning of such a plan.

    Args:
        resolution: What its recipe means.
        calibrated: Whether a stage looks at data.
    """
    if resolution.trains:
        return (
            "The whole model is held in memory while it is trained or pruned. A run that is stopped goes on with "
            "--resume behind the last whole epoch of its training; all else starts anew."
        )
    if resolution.has_epochs:
        return (
            "The whole model is held in memory, since its scales are trained end to end. A run that is stopped does "
            "again what comes before that, and goes on with --resume behind the last whole epoch."
        )
    reason = "while it is calibrated" if calibrated else "since its recipe acts on it as a whole"
    return f"The whole model is held in memory {reason}, and a run that is stopped starts anew."
