"""Results of accuracy.py, how sure their ratios are, and whether they keep what is promised."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy_cases import Row, Subject, rows, subjects
from goldstick.evaluation.metrics import bootstrap_interval

#: "Within 0.5 %."
CLOSE = 1.005


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A perplexity over another on the same texts, and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves 1 out."""
        return not self.low <= 1 <= self.high

    def __str__(self) -> str:
        digits = 4 if self.value < 1.1 else 3 if self.value < 10 else 1
        return f"{self.value:.{digits}f} ({self.low:.{digits}f}…{self.high:.{digits}f})"


@dataclass(frozen=True, kw_only=True)
class Results:
    """What was measured: model → row → figures."""

    models: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """What a file holds; nothing where there is none."""
        return cls(models=json.loads(path.read_text(encoding="utf-8"))["models"] if path.is_file() else {})

    def write(self, path: Path) -> None:
        """Write, one row a line."""
        parts = []
        for name, model in self.models.items():
            rows = ",\n".join(f"   {json.dumps(row)}: {json.dumps(found)}" for row, found in model["rows"].items())
            rest = {key: value for key, value in model.items() if key != "rows"}
            parts.append(f'  {json.dumps(name)}: {json.dumps(rest)[:-1]}, "rows": {{\n{rows}\n  }}}}')
        path.write_text('{"models": {\n' + ",\n".join(parts) + "\n}}\n", encoding="utf-8")

    def put(self, subject: Subject, row: Row, found: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Take note of one row; the number of tokens of each text is kept once."""
        model = self.models.setdefault(subject.name, {"rows": {}})
        model |= {"tokens": found["tokens"], "protocol": found["protocol"]}
        model["environment"] = dict(environment)
        model["rows"][row.name] = {key: value for key, value in found.items() if key not in ("tokens", "protocol")}

    @property
    def names(self) -> list[str]:
        """The models that were measured, in the order of the cases."""
        return [name for name in subjects() if name in self.models]

    def row(self, model: str, row: str) -> Mapping[str, Any]:
        """What was measured of a row; nothing where it was not."""
        found: Mapping[str, Any] = self.models.get(model, {}).get("rows", {}).get(row, {})
        return found

    def perplexity(self, model: str, row: str) -> float | None:
        """A perplexity, where it was measured."""
        found = self.models.get(model, {}).get("rows", {}).get(row)
        return None if found is None else float(found["perplexity"])

    def kl(self, model: str, row: str) -> float | None:
        """The mean KL of the float model's next tokens to a row's, where it was measured."""
        found = self.models.get(model, {}).get("rows", {}).get(row, {})
        return None if "kl" not in found else float(found["kl"])

    def ratio(self, model: str, row: str, other: str = "float", other_model: str | None = None) -> Ratio | None:
        """Perplexity of ``row`` over that of ``other``, where both were measured on the same texts."""
        after = self.models.get(model, {}).get("rows", {}).get(row)
        before = self.models.get(other_model or model, {}).get("rows", {}).get(other)
        if after is None or before is None:
            return None
        tokens = np.asarray(self.models[model]["tokens"], dtype=np.float64)
        difference = np.asarray(after["nll"]) - np.asarray(before["nll"])

        def log_ratio(chosen: np.ndarray[Any, Any]) -> float:
            return float(difference[chosen].sum() / tokens[chosen].sum())

        low, high = bootstrap_interval(log_ratio, len(tokens)) or (-math.inf, math.inf)
        middle = log_ratio(np.arange(len(tokens)))
        return Ratio(value=math.exp(middle), low=math.exp(low), high=math.exp(high))

    def kl_difference(self, model: str, row: str, other: str) -> tuple[float, float, float] | None:
        """Mean KL of ``row`` less that of ``other`` and its 95 % interval, where both have it text by text."""
        found = [self.row(model, name).get("kl_items") for name in (row, other)]
        if None in found:
            return None
        tokens = np.asarray(self.models[model]["tokens"], dtype=np.float64)
        difference = np.asarray(found[0]) - np.asarray(found[1])

        def mean(chosen: np.ndarray[Any, Any]) -> float:
            return float(difference[chosen].sum() / tokens[chosen].sum())

        low, high = bootstrap_interval(mean, len(tokens)) or (-math.inf, math.inf)
        return mean(np.arange(len(tokens))), low, high


def verdicts(results: Results) -> Iterator[str]:
    """A line for each promise, then for each further comparison that was made."""
    yield _better(results, "gptq", "rtn")
    yield _better(results, "awq+gptq", "rtn")
    yield _nearer(results, "gptq", "rtn")
    yield _nearer(results, "awq+gptq", "rtn")
    yield from (_recovers(results, scheme) for scheme in ("w8a8-dynamic", "w8a8-static"))
    smooth = ("smoothquant 0.5 w8a8-dynamic", "smoothquant search w8a8-dynamic")
    yield _close(results, "W8A8-dynamic with SmoothQuant", smooth)
    yield _close(results, "KV8", ("kv_cache static kv8", "kv_cache dynamic kv8"))
    for method, rival in (("awq", "rtn"), ("imatrix", "rtn"), ("awq+gptq", "gptq"), ("rotate+gptq", "gptq")):
        yield _better(results, method, rival, promised=False)


def _better(results: Results, method: str, rival: str, *, promised: bool = True) -> str:
    """Whether a method is better than another at every scheme of every model."""
    lost, total, missing = [], 0, 0
    for model, subject in subjects().items():
        for scheme in (row.scheme for row in rows(subject) if row.method == method):
            ratio = results.ratio(model, f"{method} {scheme}", f"{rival} {scheme}")
            if ratio is None:
                missing += 1
                continue
            total += 1
            if not ratio.value < 1:
                lost.append(f"{model} {scheme} {ratio}{'' if ratio.clear else ', within noise'}")
    claim = f"{method} better than {rival} everywhere" if promised else f"{method} against {rival}"
    if not total:
        return f"**not measured**: {claim}."
    count = f"better in {total - len(lost)} of {total}" + (f" ({missing} not measured)" if missing else "")
    mark = f"{_word(not lost, bool(missing))}: " if promised else ""
    return f"{mark}{claim}: {count}" + (f"; not in {'; '.join(lost)}." if lost else ".")


def _nearer(results: Results, method: str, rival: str) -> str:
    """Whether a method's next tokens are nearer to the float model's than another's, at every scheme of every model."""
    lost, total, missing = [], 0, 0
    for model, subject in subjects().items():
        for scheme in (row.scheme for row in rows(subject) if row.method == method):
            own, other = results.kl(model, f"{method} {scheme}"), results.kl(model, f"{rival} {scheme}")
            if own is None or other is None:
                missing += 1
                continue
            total += 1
            if not own < other:
                lost.append(f"{model} {scheme} {own:.4f} against {other:.4f}")
    claim = f"{method} nearer to the float model than {rival} everywhere (mean KL of the next token)"
    if not total:
        return f"**not measured**: {claim}."
    count = f"in {total - len(lost)} of {total}" + (f" ({missing} not measured)" if missing else "")
    return f"{_word(not lost, bool(missing))}: {claim}: {count}" + (f"; not in {'; '.join(lost)}." if lost else ".")


def _word(good: bool, missing: bool) -> str:
    return ("**holds where measured**" if missing else "**holds**") if good else "**fails**"


def _recovers(results: Results, scheme: str) -> str:
    """Whether SmoothQuant brings the model with planted outliers back to what the scheme gives without them."""
    claim = f"SmoothQuant recovers the planted outliers, {scheme}"
    target, lost = results.ratio("reference", f"rtn {scheme}"), results.ratio("planted", f"rtn {scheme}")
    if target is None or lost is None:
        return f"**not measured**: {claim}."
    parts, good = [], True
    for alpha in ("0.5", "search"):
        row = f"smoothquant {alpha} {scheme}"
        left = results.ratio("planted", row, f"rtn {scheme}", "reference")
        if left is None:
            return f"**not measured**: {claim}."
        good = good and left.value <= CLOSE
        parts.append(f"α {alpha}: {results.ratio('planted', row)}, {left} of the model without outliers")
    planted = f"without it {lost} of float, {target} where no outliers are planted"
    return f"{_word(good, False)}: {claim}: {planted}; {'; '.join(parts)}."


def _close(results: Results, claim: str, names: tuple[str, ...]) -> str:
    """Whether rows are within 0.5 % of float on every model."""
    found = {(model, row): results.ratio(model, row) for model in subjects() for row in names}
    known = {key: ratio for key, ratio in found.items() if ratio is not None}
    if not known:
        return f"**not measured**: {claim} within 0.5 % of float."
    good = all(ratio.value <= CLOSE for ratio in known.values())
    listed = "; ".join(f"{model}, {row.rpartition(' ')[0]}: {ratio}" for (model, row), ratio in known.items())
    return f"{_word(good, len(known) < len(found))}: {claim} within 0.5 % of float: {listed}."
