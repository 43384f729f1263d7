"""Layers that runtimes run as one."""

from __future__ import annotations

#: Last words of layers that vLLM and SGLang make one of: they have one scheme, and one scale of scales.
RUN_TOGETHER = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("w1", "w3"),
)
