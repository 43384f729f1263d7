"""Tables of docs/kernels.md about convolutions and whole networks of them, from benchmarks/results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tools.docs.results import read, table

LAST = " channels last"
SCHEMES = ("w8a8-static", "w8a8-dynamic", "w8a16")
PEERS = {
    "torch int8, oneDNN": "torch int8 onednn",
    "torch int8, x86": "torch int8 x86",
    "onnxruntime `QLinearConv`": "onnxruntime int8 static",
    "onnxruntime `ConvInteger`": "onnxruntime int8 dynamic",
}


def layers_avx2() -> str:
    """All convolutions of each network, with AVX2."""
    return _layers("convolutions")


def layers_vnni() -> str:
    """All convolutions of each network, with VNNI."""
    return _layers("convolutions-vnni")


def networks_avx2() -> str:
    """Forwards of whole networks, with AVX2."""
    return _networks("networks-avx2")


def networks_vnni() -> str:
    """Forwards of whole networks, with VNNI."""
    return _networks("networks")


def networks_zen1() -> str:
    """Forwards of whole networks over those of float32, on a processor that adds and multiplies 128 bits at a time."""
    return _over_float("networks-zen1")


def networks_intel() -> str:
    """Forwards of whole networks over those of float32, on an Intel Xeon, with VNNI."""
    return _over_float("networks-intel")


def networks_intel_avx2() -> str:
    """The same with AVX2."""
    return _over_float("networks-intel-avx2")


def _over_float(name: str) -> str:
    columns: dict[str, Any] = read(name)["ms"]
    rows = []
    for last in ("", LAST):
        for scheme in SCHEMES:
            ratios = [
                " / ".join(f"{ms[scheme + way + last] / ms[f'float32{last}']:.2f}" for way in ("", " optimized"))
                for ms in columns.values()
            ]
            rows.append([f"`{scheme}`" + (", channels last" if last else ""), *ratios])
    names = [name.replace(", batch ", " × ") for name in columns]
    return table(["time over float32's, as made / optimized", *names], rows)


def slower() -> str:
    """How many single layers take more than 2 % longer than in float32, and how much longer at most."""
    rows = []
    for title, name in (("VNNI", "convolutions-vnni"), ("AVX2", "convolutions"), ("VNNI, Intel", "convolutions-intel")):
        layers = [layer["ms"] for network in read(name)["networks"].values() for layer in network["layers"]]
        row = [title]
        for last in ("", LAST):
            ratios = [ms[scheme + last] / ms[f"float32{last}"] for ms in layers for scheme in SCHEMES]
            row += [f"{sum(ratio > 1.02 for ratio in ratios)} of {len(ratios)}", f"{max(ratios):.1f} ×"]
        rows.append(row)
    return table(["single layers, three recipes", "slower", "at most", "slower, channels last", "at most"], rows)


def _layers(name: str) -> str:
    found: dict[str, Any] = read(name)["networks"]
    rows = {title + (", channels last" if last else ""): key + last for title, key in _own() for last in ("", LAST)}
    columns = {title: network["sums_ms"] for title, network in found.items()}
    return _table("milliseconds of all convolutions", rows | PEERS, columns, 1)


def _networks(name: str) -> str:
    columns: dict[str, Any] = read(name)["ms"]
    titles = [("float32, with norms", "float32 with norms"), ("float32", "float32")]
    for scheme in SCHEMES:
        titles += [(f"`{scheme}`", scheme), (f"`{scheme}`, optimized", f"{scheme} optimized")]
    titles.append(("`w8a8-dynamic` with norms, optimized", "w8a8-dynamic with norms, optimized"))
    first = _table(
        "milliseconds of a forward", dict([*titles, ("`w8a8-static`, onnxruntime", "onnxruntime")]), columns, 2
    )
    last = _table("channels last", {title: key + LAST for title, key in titles}, columns, 2)
    return f"{first}\n\n{last}"


def _own() -> Sequence[tuple[str, str]]:
    return [("float32", "float32"), *((f"`{scheme}`", scheme) for scheme in SCHEMES)]


def _table(title: str, rows: Mapping[str, str], columns: Mapping[str, Mapping[str, float]], digits: int) -> str:
    names = [name.replace(", batch ", " × ") for name in columns]
    body = [[row, *(_figure(column.get(key), digits) for column in columns.values())] for row, key in rows.items()]
    return table([title, *names], body)


def _figure(ms: float | None, digits: int) -> str:
    """With ``digits`` behind the point, one less from ten on, but one at least; a dash where nothing was timed."""
    if ms is None:
        return "–"
    return f"{ms:.{digits if ms < 10 else max(1, digits - 1)}f}"
