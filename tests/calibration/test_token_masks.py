"""Padding has no part in what a layer is fitted to, in whatever order tokens come, of an encoder and a decoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BartConfig, BartModel, T5Config, T5Model, XLNetConfig, XLNetModel

import goldstick
from goldstick.core.token_mask import TokenMask, predicted_mask, token_mask
from tests.support.calibration import Batches

WORDS, PADDING = 97, 1
READ, WRITTEN, LESS_WRITTEN = (9, 22, 6, 15, 11), (22, 7, 13, 9, 18), (9, 17, 13, 7, 6)


def texts(lengths: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(lengths) + sum(lengths))
    return [torch.randint(5, WORDS, (1, length), generator=generator) for length in lengths]


def padded(rows: list[Tensor], prefix: str = "") -> dict[str, Tensor]:
    """All rows as one batch, with the mask."""
    ids = torch.full((len(rows), max(row.shape[1] for row in rows)), PADDING)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : row.shape[1]], mask[number, : row.shape[1]] = row, 1
    return {f"{prefix}input_ids": ids, f"{prefix}attention_mask": mask}


class TokensFirst(nn.Module):
    """torch's encoder as it is made where nothing is said: tokens come before rows."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        found: Tensor = self.layers(self.words(input_ids.t()), src_key_padding_mask=attention_mask == 0)
        return found


def xlnet() -> nn.Module:
    return XLNetModel(XLNetConfig(vocab_size=WORDS, d_model=64, n_layer=2, n_head=4, d_inner=128))


def bart() -> nn.Module:
    return BartModel(
        BartConfig(
            vocab_size=WORDS, d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=64,
        )
    )  # fmt: skip


def t5() -> nn.Module:
    return T5Model(T5Config(vocab_size=WORDS, d_model=64, d_kv=16, d_ff=128, num_layers=1, num_heads=4))


CASES: list[tuple[Any, tuple[int, ...]]] = [
    (TokensFirst, ()), (xlnet, ()), (bart, WRITTEN), (t5, WRITTEN), (t5, LESS_WRITTEN),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*goldstick does not recognise")  # XLNet's attention
@pytest.mark.parametrize(("build", "written"), CASES)
def test_padded_rows_give_the_codes_of_rows_alone(build: Any, written: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = build().eval()
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings == WORDS:
            module.weight.data[PADDING] = 30 * torch.randn(64)  # which would be seen
    together, alone = padded(texts(READ)), [padded([row]) for row in texts(READ)]
    if written:
        together |= padded(texts(written), "decoder_")
        alone = [one | padded([row], "decoder_") for one, row in zip(alone, texts(written), strict=True)]
    first, second = (goldstick.apply(model, "gptq-w4a16-g32", data=data) for data in ([together], alone))
    names = [name for name, module in first.model.named_modules() if hasattr(module, "weight_packed")]
    assert len(names) >= 4
    tokens = {record.notes.get("tokens") for record in first.report.layers}
    assert tokens - {None} <= {sum(READ), sum(written)}
    for name in names:
        codes, others = (found.model.get_submodule(name).quantized_tensor().codes for found in (first, second))
        assert float((codes != others).float().mean()) < 0.02, name


def test_a_decoder_without_a_mask_counts_all_of_its_own_tokens() -> None:
    batch = {**padded(texts(READ)), "decoder_input_ids": torch.ones(len(READ), max(READ), dtype=torch.int64)}
    hidden, encoded = torch.zeros(len(READ), max(READ), 8), torch.zeros(len(READ), max(READ), 8)
    mask = token_mask(batch, encoded)
    assert torch.equal(mask.of(hidden), torch.ones(len(READ), max(READ)))
    assert torch.equal(mask.of(encoded), batch["attention_mask"])
    assert torch.equal(mask.of(encoded.view(-1, 8)), batch["attention_mask"].flatten())
    assert torch.equal(predicted_mask(batch).of(hidden), torch.ones(len(READ), max(READ)))


def test_a_mask_is_laid_on_tokens_alone() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert torch.equal(TokenMask(mask).of(torch.zeros(3, 2, 8)), mask.t())
    assert torch.equal(TokenMask(mask).of(torch.zeros(2, 3, 8)), mask)
    assert torch.equal(TokenMask(mask).of(torch.zeros(6, 8)), mask.flatten())
    assert TokenMask(mask).of(torch.zeros(2, 4, 8)) is None
    assert TokenMask().of(torch.zeros(2, 3, 8)) is None
    wide: Batches = [{"attention_mask": mask.view(2, 1, 1, 3)}]
    assert torch.equal(token_mask(wide[0]).of(torch.zeros(2, 3, 8)), mask)
