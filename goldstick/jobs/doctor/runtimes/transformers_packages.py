"""What transformers loads by packages of others, and where those run it."""

from __future__ import annotations

from goldstick.formats.auto_round import AUTO_ROUND, AUTO_ROUND_AWQ
from goldstick.jobs.doctor.runtimes.runtime import AMD, CPU, HARDWARE, NVIDIA, Answers, no, unread, yes
from goldstick.jobs.doctor.runtimes.subject import Subject

#: Sizes of groups that torch's product of 4 bits takes on processors (_weight_int4pack_mm_for_cpu).
_CHANNELS_OF_TORCH = (32, 64, 128, 256)


def everywhere(words: str) -> Answers:
    """On every processor alike."""
    return {hardware: yes(words) for hardware in (NVIDIA, AMD, CPU)}


def by_gptqmodel(subject: Subject, words: str) -> Answers:
    """GPTQModel 7.7.0 multiplies 4 bits by channel on processors in torch, whose product takes few widths."""
    table = subject.table
    four = table.get("bits", table.get("w_bit")) == 4
    by_channel = table.get("group_size", table.get("q_group_size")) == -1
    wide = [module.name for module in subject.quantized if module.shape[-1] not in _CHANNELS_OF_TORCH]
    if four and by_channel and wide:
        reason = f"channels of 4 bits have 32, 64, 128 or 256 inputs there, not that of {wide[0]}"
        return {**everywhere(words), CPU: no(reason)}
    return everywhere(words)


def by_auto_round(packing: object) -> Answers:
    """auto-round 0.16.1 runs layers packed as AWQ's on processors by kernels of a package of their own."""
    if packing == AUTO_ROUND_AWQ.packing:
        return {**everywhere("package auto-round"), CPU: yes("packages auto-round and auto-round-lib")}
    return everywhere("package auto-round") if packing == AUTO_ROUND.packing else dict.fromkeys(HARDWARE, unread())
