"""``python -m tools.real_models [NAME …]``: real models, compressed as recommended and measured on their tasks."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_BUILD = _ROOT / "build" / "real-models"


def main() -> None:
    """Measure the models that are named, or all; write a JSON file and the page where that was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tools.real_models", description=__doc__)
    parser.add_argument("names", nargs="*", help="models; all where none is named")
    parser.add_argument("--packages", action="store_true", help="print what is to be installed without dependencies")
    parser.add_argument("--site", type=Path, help="the folder these packages lie in")
    parser.add_argument("--build", type=Path, default=_BUILD, help="where models and recordings are kept")
    parser.add_argument("--out", type=Path, help="the JSON file; models that are not named stay in it")
    parser.add_argument("--table", type=Path, help="the Markdown file whose part below its mark is written anew")
    parser.add_argument("--compress", help="make this one variant of the named plain module, and no more")
    given = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    warnings.filterwarnings("ignore")

    import torch
    import transformers

    from tools.real_models.catalogue import MODELS
    from tools.real_models.measure import folder_name, measure, processor_name, versions, write_results
    from tools.real_models.model import Workplace
    from tools.real_models.table import page, write_table

    if given.packages:
        print(*sorted({package for model in MODELS.values() for package in model.packages}))
        return
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    unknown = set(given.names) - set(MODELS)
    if unknown:
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    site = given.site or next((_BUILD / "environment").glob("lib/python*/site-packages"), None)
    if site is None:
        parser.error("the packages are not installed: make real-models does it, or name their folder by --site")
    shared = Path(os.environ.get("GOLDSTICK_SHARED") or _ROOT.parent / "shared")

    def place(name: str) -> Workplace:
        return Workplace(site=site.resolve(), build=(given.build / name).resolve(), shared=shared)

    if given.compress:
        model = MODELS[given.names[0]]
        variant = next(one for one in model.variants if one.name == given.compress)
        assert model.compress is not None
        model.compress(place(model.name), variant, place(model.name).path(folder_name(variant)))
        return
    results = {"versions": versions(), "processor": processor_name(), "models": {}}
    if given.out and given.out.exists():
        results["models"] = json.loads(given.out.read_text())["models"]
    chosen = given.names or list(MODELS)
    for name in chosen:
        for record in measure(MODELS[name], place(name)):
            results["models"][name] = record
            results["models"] = {one: results["models"][one] for one in MODELS if one in results["models"]}
            if given.out:
                write_results(given.out, results)
    print(page(results | {"models": {name: results["models"][name] for name in chosen}}))
    if given.table:
        write_table(results, given.table)


if __name__ == "__main__":
    main()
