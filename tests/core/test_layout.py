"""Layouts: a stored parameter and its matrix are two views of one thing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from goldstick.core.layout import Layout

SHAPES = {
    Layout.LINEAR: (6, 8),
    Layout.TRANSPOSED: (8, 6),
    Layout.CONVOLUTION: (6, 2, 3, 3),
    Layout.TRANSPOSED_CONVOLUTION: (2, 6, 3),
    Layout.EMBEDDING: (6, 8),
    Layout.MATRIX: (6, 8),
    Layout.EXPERTS: (2, 6, 8),
    Layout.TRANSPOSED_EXPERTS: (2, 8, 6),
}


@pytest.mark.parametrize("layout", Layout)
def test_a_stored_parameter_comes_back_from_its_matrix(layout: Layout) -> None:
    stored = torch.randn(SHAPES[layout])
    matrix = layout.to_matrix(stored)
    assert matrix.shape[-2] == 6, "outputs are rows"
    assert torch.equal(layout.from_matrix(matrix, stored.shape), stored)


def test_a_row_of_a_transposed_convolution_makes_one_output_channel() -> None:
    weight, x = torch.randn(2, 6, 3), torch.randn(1, 2, 5)
    before = F.conv_transpose1d(x, weight)
    matrix = Layout.TRANSPOSED_CONVOLUTION.to_matrix(weight).clone()
    matrix[4] = 0
    after = F.conv_transpose1d(x, Layout.TRANSPOSED_CONVOLUTION.from_matrix(matrix, weight.shape))
    assert not after[:, 4].any()
    assert torch.equal(after[:, :4], before[:, :4])
