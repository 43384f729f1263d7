"""The table of confidence: each model is judged at the temperature that is best for it."""

from __future__ import annotations

import math

import torch
from torch import nn

from benchmarks.confidence import DEFAULT, FLOAT, OTHERS, TEMPERATURES, least, losses, table
from benchmarks.effort import ROUNDING, TEXTS


class Bigram(nn.Module):
    """Logits that are ``sureness`` times the logarithms of the probabilities by which the next token is drawn."""

    def __init__(self, chances: torch.Tensor, sureness: float) -> None:
        super().__init__()
        self.logits = sureness * chances.log()

    def forward(self, input_ids: torch.Tensor) -> Bigram.Output:
        return Bigram.Output(self.logits[input_ids])

    class Output:
        def __init__(self, logits: torch.Tensor) -> None:
            self.logits = logits


def test_the_temperature_of_a_model_that_is_too_sure_is_found() -> None:
    random = torch.Generator().manual_seed(0)
    chances = torch.rand(5, 5, generator=random).pow(2)
    chances /= chances.sum(1, keepdim=True)
    text = [0]
    for _ in range(20_000):
        text.append(int(torch.multinomial(chances[text[-1]], 1, generator=random)))
    for sureness in (1.0, 1.2):
        best, loss = least(losses(Bigram(chances, sureness), [text]))
        assert abs(best - sureness) <= 0.04
        exact = -(chances[text[:-1]].double().log()[range(len(text) - 1), text[1:]]).mean()
        assert abs(loss - float(exact)) < 2e-3


def test_perplexities_are_compared_as_they_are_and_each_at_its_best() -> None:
    def rows(best: float, least: float) -> dict[str, dict[str, float]]:
        curve = {str(one): least + (one - best) ** 2 for one in TEMPERATURES}
        return dict.fromkeys(TEXTS, curve)

    results = {
        FLOAT: {"0": rows(1.2, 1.0)},
        f"w4a16-g32 {DEFAULT}": {"0": rows(1.2, 1.01), "1": rows(1.2, 1.03)},
        f"w4a16-g32 {ROUNDING}": {"0": rows(1.0, 1.02)},
        f"w4a16-g32 {OTHERS}": {"0": rows(1.1, 1.0)},
    }
    lines = [line for line in table(results).splitlines() if line.startswith("| text |") and "w4a16" in line]
    assert [line.split("|")[3].strip(" `") for line in lines] == [ROUNDING, OTHERS, DEFAULT]
    plain, best = math.exp(1.02 - 1.04), math.exp(0.02)
    assert f"| 1.000 | {plain:.4f} | {best:.4f} |" in lines[0], (
        "flatter than the float model: less loss as it is, more at best"
    )
    assert "± 0.0144 (2)" in lines[2].split("|")[-2]
