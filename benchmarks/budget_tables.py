"""The tables of budget.py, of its results."""

from __future__ import annotations

from typing import Any


def tables(results: dict[str, Any], losses: dict[str, tuple[Any, float]]) -> str:
    """What was found, for the document; ``losses`` is what may be lost: model → the metric and how much."""
    lines = ["| model | bits asked | KL, searched | best scheme for all | its KL | ratio |", "|---" * 6 + "|"]
    for model, rows in results.get("uniform", {}).items():
        for bits, row in sorted(rows.items(), key=lambda item: -float(item[0])):
            if "least_bits" in row:
                lines.append(f"| {model} | {bits} | – (no less than {row['least_bits']:.2f} bits) | – | – | – |")
                continue
            scheme = f"`{row['scheme']}`, {100 * row['scheme_bytes'] / row['bytes']:.1f} % of the bytes"
            lines.append(
                f"| {model} | {bits} | {row['kl']:.4f} | {scheme} | {row['scheme_kl']:.4f} | {row['ratio']:.2f} |"
            )
    pruned = ["| model | bits asked | channels that stay | KL | KL of whole layers | ratio |", "|---" * 6 + "|"]
    for model, rows in results.get("channels", {}).items():
        for bits, row in sorted(rows.items(), key=lambda item: -float(item[0])):
            kept = "all" if row["ratio"] == 1 else ", ".join(f"{some} of {units}" for some, units in row["kept"])
            pruned.append(f"| {model} | {bits} | {kept} | {row['kl']:.4f} | {row['whole']:.4f} | {row['ratio']:.2f} |")
    said = []
    for model, rows in results.get("sizes", {}).items():
        below = [row["below_percent"] for row in rows.values()]
        said.append(
            f"* {model}: {len(below)} sizes; files {min(below):.3f} to {max(below):.3f} % below what was asked."
        )
    for model, rows in results.get("loss", {}).items():
        kept, grown = [row["kept"] for row in rows.values()], [row["grown"] for row in rows.values()]
        metric, most = losses[model]
        asked, words = f"--max-loss {most} --metric kl", f"KL was {min(grown):.4f} to {max(grown):.4f}"
        if metric == "perplexity":
            asked = f"--max-loss {most:.0%}"
            words = f"perplexity grew by {100 * min(grown):.2f} to {100 * max(grown):.2f} %"
        said.append(f"* {model}: `{asked}` was kept on unseen rows with {sum(kept)} of {len(kept)} seeds; {words}.")
    for model, rows in results.get("scores", {}).items():
        row = rows["all"]
        said.append(
            f"* {model}: Spearman of scores with measured KL over {row['pairs']} pairs: {row['spearman_second']:.3f} "
            f"(second order), {row['spearman_first']:.3f} (first)."
        )
    for model, rows in results.get("cost", {}).items():
        words = [
            f"{name} {row['processor_seconds']:.0f} s, {row['peak_bytes'] / 1e6:.0f} MB" for name, row in rows.items()
        ]
        said.append(f"* {model}, processor time and peak memory: {'; '.join(words)}.")
    return "\n".join([*lines, "", *pruned, "", *said])
