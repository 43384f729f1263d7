"""The drift of a layer's inputs from those of the float model, made up for in the weight that GPTQ rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.rows import row_chunks


def gptaq_target(weight: Tensor, drifted: Tensor, factor: Tensor, order: Tensor, alpha: float) -> Tensor:
    """W' = W + α W D H⁻¹, the float weight that comes nearest to the float model's output on the inputs there are.

    With Δ = W − Ŵ, ‖W x_fp − Ŵ x_q‖² summed over the inputs, times 2/n, is tr(Δ H Δᵀ) + 2 tr(W D Δᵀ) + const. Let
    E = W D H⁻¹. Then tr((Δ + E) H (Δ + E)ᵀ) = tr(Δ H Δᵀ) + 2 tr(E H Δᵀ) + tr(E H Eᵀ), and E H = W D: the two differ by
    what does not depend on Ŵ. So the asymmetric problem of GPTAQ (arXiv 2504.02692) is the symmetric one of GPTQ for
    W' = W + E, and α < 1 goes a part of the way. The paper instead adds α w_i P_i, P = triu(D Uᵀ, 1) U, to the
    columns to come as column i is rounded: what column i drifts is then made up for by later columns only.

    Args:
        weight: W, float [out, in].
        drifted: W D, float64 [out, in].
        factor: U, float64 [in, in], upper, with H⁻¹ = UᵀU, H damped, in the order in which columns are rounded.
        order: That order, int64 [in].
        alpha: α.

    Returns:
        float64 [out, in], in the order of the weight.
    """
    target = weight.to(torch.float64, copy=True)
    for part in row_chunks(weight, copies=2):
        moved = torch.empty_like(drifted[part])
        moved[:, order] = drifted[part][:, order] @ factor.T @ factor
        target[part] += alpha * moved
    return target
