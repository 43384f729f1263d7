"""Other roundings of the same network: its channels in another order compute what they did."""

from __future__ import annotations

import torch

import goldstick
from benchmarks.chance import another_order
from tests.support.tiny_models import FAMILIES


@torch.no_grad()
def test_a_network_in_another_order_is_the_same_and_rounds_otherwise() -> None:
    model = FAMILIES["llama_gqa"]()
    ids = torch.arange(48).view(2, 24)
    changed = another_order(model, 3)
    before, after = model(input_ids=ids).logits, changed(input_ids=ids).logits
    assert float((before - after).abs().max()) < 1e-4 * float(before.abs().max())
    rounded = [goldstick.apply(one, "rtn-w4a16-g32").model(input_ids=ids).logits for one in (model, changed)]
    assert float((rounded[0] - rounded[1]).abs().max()) > 1e-2 * float(before.abs().max())
    assert not any(
        torch.equal(one, other)
        for one, other in zip(model.parameters(), changed.parameters(), strict=True)
        if one.ndim == 2
    )
