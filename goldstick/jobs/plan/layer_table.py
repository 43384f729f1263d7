"""Layer table: a plan as rows of plain data, one for each tensor."""

from __future__ import annotations

from typing import Any

from goldstick.jobs.plan.plan import Plan


def layer_table(plan: Plan) -> list[dict[str, Any]]:
    """One row for each tensor of a plan, as plain data."""
    rows = []
    for tensor in plan.tensors:
        assignment = tensor.assignment
        reason = None
        if assignment is None:
            reason = plan.resolution.ignored.get(tensor.parameter, "not used by the model")
        rows.append(
            {
                "name": tensor.name,
                "shape": list(tensor.source.shape),
                "dtype": str(tensor.source.dtype).removeprefix("torch."),
                "scheme": assignment.scheme.label if assignment else None,
                "algorithm": assignment.stage.name if assignment else None,
                "bytes_before": tensor.source.stored_nbytes,
                "bytes_after": tensor.bytes_after,
                "note": assignment.note if assignment else reason,
            }
        )
    return rows
