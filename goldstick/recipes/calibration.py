"""What a recipe says of the data that its stages look at."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from goldstick.core.seed import LEAST, MOST


class Calibration(BaseModel):
    """The data that calibrated algorithms look at."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    dataset: str = Field(default="wikitext2", description="a file, a folder or the name of a data set")
    samples: int = Field(default=128, ge=1, description="how many samples are drawn")
    seq_len: int = Field(default=2048, ge=1, description="tokens of a sample, at most the model's context")
    seed: int = Field(default=0, ge=LEAST, le=MOST, description="of the drawing")
    text_field: str | None = Field(default=None, min_length=1, description="the field of a row that counts")
    packing: bool = Field(default=True, description="one stream cut into windows; else a padded sample for each row")
    random_tokens: float = Field(default=0.0, ge=0, le=1, description="further samples of random tokens, as a share")
    training_batch: int = Field(default=8, ge=2, description="samples of a step, for stages that train")
    allow_short: bool = Field(default=False, description="take what there is where the data give fewer samples")

    @property
    def tokens(self) -> int:
        """How many tokens stages are shown at most."""
        return (self.samples + int(self.random_tokens * self.samples + 0.5)) * self.seq_len
