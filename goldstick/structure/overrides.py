"""The few facts about model families that cannot be read off a module. Data only."""

from __future__ import annotations

#: Names under which modules hold the weights of all experts fused in one 3-D parameter [experts, out, in].
FUSED_EXPERT_PARAMETERS = frozenset(
    {
        "gate_up_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
        "w1",
        "w2",
        "w3",
        "w13",
        "input_linear",
        "output_linear",
    }
)

#: Those of them that read the experts' inner activations; the others read what the module is given.
EXPERT_OUTPUT_PARAMETERS = frozenset({"down_proj", "w2", "output_linear"})

#: Classes that multiply with such a parameter of all experts at once.
BATCHED_EXPERT_CLASSES = frozenset({"Llama4TextExperts", "InklingSharedExperts"})

#: Attribute by which a fused experts module says that it stores [experts, in, out] instead.
TRANSPOSED_EXPERTS_FLAG = "is_transposed"

#: Classes that store [experts, in, out] and do not say so.
TRANSPOSED_EXPERT_CLASSES = frozenset({"Llama4TextExperts"})
