"""What is recorded: a model, what is done to it, how it is stored, and further formats it is exported to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Way = Literal["directory", "memory", "command"]

INT4 = "w4a16-g32"
#: Stages by the words of a case's name.
STAGES: dict[str, list[Any]] = {
    "rtn": [{"rtn": {"scheme": INT4}}],
    "rtn-8": [{"rtn": {"scheme": "w8a16"}}],
    "rtn-8-g32": [{"rtn": {"scheme": "w8a16-g32"}}],
    "rtn-3": [{"rtn": {"scheme": "w3a16-g32"}}],
    "rtn-2-asym": [{"rtn": {"scheme": "w2a16-g64-asym"}}],
    "rtn-asym": [{"rtn": {"scheme": "w4a16-g32-asym"}}],
    "rtn-channel": [{"rtn": {"scheme": "w4a16-channel"}}],
    "rtn-hqq": [{"rtn": {"scheme": "w4a16-g64-asym", "range_search": "hqq"}}],
    "rtn-w8a8": [{"rtn": {"scheme": "w8a8-dynamic"}}],
    "rtn-w4a8": [{"rtn": {"scheme": "w4a8-dynamic-g32"}}],
    "rtn-static": [{"rtn": {"scheme": "w8a8-static"}}],
    "rtn-shifted": [{"rtn": {"scheme": "w8a8-static-shifted"}}],
    "rtn-mixed": [{"rtn": {"scheme": "w8a16", "overrides": {"*mlp*": INT4}}}],
    "rtn-head": [{"rtn": {"scheme": "w8a16", "targets": {"include": ["*"]}, "tie": "keep"}}],
    "rtn-fallback": [{"rtn": {"scheme": "w4a16-g64", "group_size_mismatch": "channel"}}],
    "imatrix": [{"rtn": {"scheme": "w3a16-g32", "range_search": "imatrix"}}],
    "gptq": [{"gptq": {"scheme": INT4}}],
    "gptq-static": [{"gptq": {"scheme": "w8a8-static"}}],
    "gptq-channel": [{"gptq": {"scheme": "w4a16-channel"}}],
    "gptq-act": [{"gptq": {"scheme": INT4, "order": "activation"}}],
    "gptaq": [{"gptq": {"scheme": INT4, "gptaq": True}}],
    "awq": [{"awq": {"scheme": "w4a16-g32-asym"}}],
    "awq-gptq": [{"awq": {"quantize": False}}, {"gptq": {"scheme": INT4}}],
    "smoothquant": ["smoothquant", {"rtn": {"scheme": "w8a8-dynamic"}}],
    "smoothquant-multiply": [{"smoothquant": {"unfoldable": "multiply"}}, {"rtn": {"scheme": "w8a8-dynamic"}}],
    "rotate": ["rotate", {"rtn": {"scheme": INT4}}],
    "rotate-gptq": ["rotate", {"gptq": {"scheme": INT4}}],
    "slb-finish": [{"gptq": {"scheme": "w2a16-g32"}}, {"slb_finish": {"steps": 4}}],
    "kv8": [{"rtn": {"scheme": INT4}}, "kv_cache"],
    "kv8-dynamic": [{"rtn": {"scheme": INT4}}, {"kv_cache": {"mode": "dynamic"}}],
    "kv8-gptq": [{"gptq": {"scheme": INT4}}, "kv_cache"],
    "slb": [{"slb": {"scheme": "w2a16-channel-asym", "training": {"steps": 6}}}],
    "finetune": [{"finetune": {"training": {"steps": 3}}}, {"rtn": {"scheme": "w8a16"}}],
    "scop": [{"scop": {"rate": 0.25, "training": {"steps": 4}}}, {"rtn": {"scheme": "w8a16"}}],
}
#: Recipes that are known by a name alone, given to the command line.
# fmt: off
NAMED = (
    "awq-gptq-w4a16-channel", "awq-gptq-w4a16-g128", "awq-gptq-w4a16-g32", "awq-gptq-w4a16-g64", "awq-w3a16-g32",
    "awq-w4a16-channel", "awq-w4a16-g128-kv8", "awq-w4a16-g128", "awq-w4a16-g32", "awq-w4a16-g64",
    "gptaq-w4a16-channel", "gptaq-w4a16-g128", "gptaq-w4a16-g32", "gptaq-w4a16-g64", "gptq-slb_finish-w2a16-g32",
    "gptq-w2a16-g32", "gptq-w3a16-g128", "gptq-w3a16-g32", "gptq-w4a16-channel-kv8", "gptq-w4a16-channel",
    "gptq-w4a16-g128-kv8", "gptq-w4a16-g128", "gptq-w4a16-g32-kv8", "gptq-w4a16-g32", "gptq-w4a16-g64-kv8",
    "gptq-w4a16-g64", "gptq-w4a8-channel", "gptq-w4a8-g128", "gptq-w4a8-g32", "gptq-w4a8-g64", "gptq-w8a8-static",
    "gptq-w8a8", "hqq-w4a16-g64", "imatrix-w2a16-g32", "imatrix-w3a16-g32", "imatrix-w4a16-channel",
    "imatrix-w4a16-g128", "imatrix-w4a16-g32", "imatrix-w4a16-g64", "rotate-gptq-w4a16-channel",
    "rotate-gptq-w4a16-g128", "rotate-gptq-w4a16-g32", "rotate-gptq-w4a16-g64", "rotate-rtn-w8a8-dynamic",
    "rtn-mixed-w4-w8", "rtn-w2a16-g128", "rtn-w2a16-g32", "rtn-w3a16-g128", "rtn-w3a16-g32",
    "rtn-w4a16-channel-kv8", "rtn-w4a16-channel", "rtn-w4a16-g128-kv8", "rtn-w4a16-g128", "rtn-w4a16-g32-kv8",
    "rtn-w4a16-g32", "rtn-w4a16-g64-asym", "rtn-w4a16-g64-kv8", "rtn-w4a16-g64", "rtn-w4a8-g128", "rtn-w8a16-kv8",
    "rtn-w8a16", "rtn-w8a8-static", "rtn-w8a8", "smoothquant-gptq-w8a8", "smoothquant-w8a8-dynamic-kv8",
    "smoothquant-w8a8-dynamic",
)
# fmt: on
_DATA = {"dataset": "text.txt", "samples": 4, "seq_len": 32}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One checkpoint, and those exported from it."""

    model: str
    stages: str
    way: Way = "directory"
    format: str = "auto"
    exports: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The key of the case in a record."""
        return "/".join((self.model, self.stages, self.way, self.format, *self.options))

    @property
    def arguments(self) -> list[str]:
        """The options of the command line that name the recipe, and the data it looks at."""
        words = self.stages.split("-")
        blind = words[0] in ("rtn", "hqq") and not {"static", "kv8"} & set(words)
        data = [] if blind else [word for key, value in _DATA.items() for word in _option(key, value)]
        return ["--recipe", self.stages, "--group-size-mismatch", "channel", *data]

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe that the case's words stand for."""
        return {"stages": STAGES[self.stages], "calibration": _DATA, "export": {"format": self.format}}


def _option(key: str, value: object) -> list[str]:
    return [f"--{key.replace('_', '-')}", str(value)]


def _on(
    model: str, *stages: str, way: Literal["directory", "memory", "command"] = "directory", format: str = "auto"
) -> list[Case]:
    return [Case(model=model, stages=one, way=way, format=format) for one in stages]


CASES: tuple[Case, ...] = (
    Case(model="reference", stages="rtn", exports=("native", "gguf")),
    Case(model="reference", stages="gptq-act"),
    Case(model="reference", stages="rtn", format="gguf", exports=("compressed-tensors",)),
    Case(model="reference", stages="rtn-8-g32", exports=("gguf",)),
    Case(model="llama-float16", stages="rtn", exports=("gptq", "gptq-v2", "native")),
    Case(model="llama-float16", stages="awq", exports=("awq", "gptq-v2")),
    Case(model="llama-float16", stages="rtn", format="gptq", exports=("compressed-tensors", "gptq-v2")),
    Case(model="llama-float16", stages="gptq", format="gptq-v2", exports=("gptq",)),
    Case(model="llama-float16", stages="rtn-asym", format="awq", exports=("native",)),
    Case(model="llama-float16", stages="gptq", format="native", exports=("compressed-tensors",)),
    Case(model="llama", stages="rtn", options={"proof": "tensors"}),
    Case(model="llama", stages="kv8", exports=("native",)),
    Case(model="mixture", stages="rtn", exports=("native",)),
    *_on("llama", "rtn-8", "rtn-3", "rtn-2-asym", "rtn-channel", "rtn-hqq", "rtn-w8a8", "rtn-w4a8", "rtn-static"),
    *_on("llama", "rtn-shifted", "rtn-mixed", "rtn-head", "imatrix", "gptq", "gptq-static", "gptaq", "awq-gptq"),
    *_on("llama", "smoothquant", "smoothquant-multiply", "rotate", "rotate-gptq", "slb-finish", "kv8-dynamic"),
    *_on("llama-bfloat16", "rtn-asym", "gptq", "awq", "rotate-gptq", "kv8-gptq"),
    *_on("mixture", "gptq", "awq-gptq"),
    *_on("gpt2", "rtn", "gptq", "smoothquant"),
    *_on("t5", "rtn-fallback", "rtn-8"),
    *_on("bert", "rtn", "rtn-w8a8"),
    *_on("vit", "rtn"),
    *_on("resnet", "rtn-8"),
    *_on("llama", "rtn", "gptq", "kv8", "rotate", "finetune", way="memory"),
    *_on("llama-float16", "awq", way="memory", format="awq"),
    *_on("mixture", "gptq", way="memory"),
    *_on("t5", "gptq", way="memory"),
    *_on("bert", "gptq", way="memory"),
    *_on("vit", "gptq-channel", way="memory"),
    *_on("resnet", "rtn-8", "gptq-channel", way="memory"),
    *_on("plain", "rtn-8", "gptq-channel", "slb", "scop", way="memory"),
    *_on("llama", *NAMED, way="command"),
)
