"""How long a cut CIFAR-10 ResNet takes, beside the whole one: `python -m benchmarks.pruned_latency`.

Channels go at random, since which ones makes no difference to the time. Networks run in turn, with channels first and
last in memory; the least time of a forward counts.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import Tensor, nn

import goldstick
from benchmarks.cifar import ROOT, Augmented, pretrained
from goldstick.algorithms import SCOP
from goldstick.training import TrainingTask


def main() -> None:
    """Measure, print, write."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    whole, rows = pretrained(arguments.depth), []
    networks: dict[str, nn.Module] = {"whole": whole}
    sizes: dict[str, dict[str, list[int]]] = {"whole": {}}
    images = torch.randint(256, (256, 3, 32, 32), dtype=torch.uint8)
    task = TrainingTask(batches=Augmented(images=images, classes=torch.randint(10, (256,))))
    for rate in arguments.rates:
        result = goldstick.apply(whole, {"stages": [SCOP(criterion="random", rate=rate)]}, training=task)
        (pruning,) = result.report.pruning
        networks[f"{rate:.0%} cut"] = result.model.eval()
        sizes[f"{rate:.0%} cut"] = {key: pruning[key] for key in ("parameters", "macs")}
    x = torch.randn(arguments.images, 3, 32, 32)
    formats = {"channels first": x, "channels last": x.contiguous(memory_format=torch.channels_last)}
    for order, given in formats.items():
        for name, seconds in _fastest(networks, given, arguments.rounds).items():
            rows.append({"network": name, "memory": order, "seconds": seconds} | sizes[name])
            print(f"{name:12} {order:16} {seconds * 1e3:8.1f} ms")
    out = ROOT / "benchmarks" / "results" / "pruned-latency.json"
    out.write_text(json.dumps({"settings": vars(arguments), "rows": rows}, indent=1) + "\n", encoding="utf-8")


@torch.no_grad()
def _fastest(networks: dict[str, nn.Module], x: Tensor, rounds: int) -> dict[str, float]:
    least = dict.fromkeys(networks, float("inf"))
    for _ in range(rounds):
        for name, network in networks.items():
            started = time.perf_counter()
            network.eval()(x)
            least[name] = min(least[name], time.perf_counter() - started)
    return least


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--depth", type=int, default=56, choices=(20, 56))
    parser.add_argument("--rates", type=float, nargs="+", default=[0.45, 0.5], help="of each layer's channels that go")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


if __name__ == "__main__":
    main()
