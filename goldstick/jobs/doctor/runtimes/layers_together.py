"""Layers together: what a runtime makes one layer of, and stores apart; and what it cuts over several devices."""

from __future__ import annotations

from collections.abc import Iterator

from goldstick.jobs.doctor.runtimes.subject import Module, Subject

#: Last words of layers whose inputs are cut when a model is split; of all others the outputs are.
CUT_BY_INPUTS = frozenset(["o_proj", "out_proj", "down_proj", "w2", "wo", "fc2", "dense_4h_to_h", "linear_2"])


def fused_otherwise(subject: Subject) -> Iterator[str]:
    """Layers that are fused, and do not have one scheme."""
    for name, members in subject.fused():
        if len({module.scheme for module in members}) > 1:
            yield f"{name}: {', '.join(f'{module.leaf} {module.label}' for module in members)}"


def experts_otherwise(subject: Subject) -> Iterator[str]:
    """Experts of one layer whose matrices do not have one scheme."""
    for place, members in subject.experts():
        if len({module.scheme for module in members}) > 1:
            kinds = {module.leaf: module.label for module in members}
            yield f"{place}: {', '.join(f'{leaf} {label}' for leaf, label in kinds.items())}"


def split_groups(subject: Subject) -> Iterator[str]:
    """Layers whose inputs, cut over the devices, are no whole groups; blocks may end with the row where it is whole."""
    for module in subject.quantized:
        assert module.scheme is not None
        grid, inputs = module.scheme.weight, module.shape[1]
        size = grid.group_size
        devices = subject.tensor_parallel if module.leaf in CUT_BY_INPUTS else 1
        if size is None or (grid.granularity == "block" and devices == 1):
            continue
        if inputs % devices or (inputs // devices) % size:
            cut = f" over {devices} devices" if devices > 1 else ""
            yield f"{module.name}: {inputs} inputs{cut} in groups of {size}"


def split_blocks(subject: Subject) -> Iterator[str]:
    """Layers whose outputs, cut over the devices or fused with others', are no whole blocks of rows."""
    fused = {member.name: place for _, members in subject.fused() for place, member in enumerate(members[::-1])}
    for module in subject.quantized:
        assert module.scheme is not None
        grid = module.scheme.weight
        if grid.granularity != "block" or grid.group_size is None or module.leaf in CUT_BY_INPUTS:
            continue
        outputs, devices = module.shape[0], subject.tensor_parallel
        followed = fused.get(module.name, 0) > 0  # by another layer in one matrix
        if (devices > 1 or followed or module.expert) and (outputs % devices or (outputs // devices) % grid.group_size):
            cut = f" over {devices} devices" if devices > 1 else ""
            yield f"{module.name}: {outputs} outputs{cut} in blocks of {grid.group_size}"


def split_heads(subject: Subject) -> Iterator[str]:
    """Attention heads that the devices do not divide."""
    heads = subject.text_config.get("num_attention_heads")
    if type(heads) is int and heads % subject.tensor_parallel:
        yield f"{heads} heads over {subject.tensor_parallel} devices"


def quantized_routers(subject: Subject) -> Iterator[str]:
    """Routers that are quantized: what stands beside experts and decides, or is packed and no linear layer."""
    yield from (f"{module.name}: {module.label}" for module in subject.quantized if module.role == "router")
    places = {place.removesuffix(".experts") for place, _ in subject.experts()}
    yield from (name for name in subject.packed_otherwise if name.rpartition(".")[0] in places)


def quantized_heads(subject: Subject) -> Iterator[Module]:
    """Output heads that are quantized."""
    yield from (module for module in subject.quantized if module.role == "head")
