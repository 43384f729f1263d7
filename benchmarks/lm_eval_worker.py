"""Run lm-evaluation-harness's ``boolq`` and ``wikitext`` on local data; started by lm_eval_equality.py.

Needs lm_eval and transformers, nothing of goldstick. Reads a request and writes an answer, both JSON.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def main(request: Path, answer: Path) -> None:
    """Evaluate the model of the request on its files."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks.wikitext.preprocess_wikitext import process_results, wikitext_detokenizer

    asked = json.loads(request.read_text())
    tasks: dict[str, dict[str, Any]] = {
        "boolq": {
            "output_type": "multiple_choice",
            "doc_to_text": "{{passage}}\nQuestion: {{question}}?\nAnswer:",
            "doc_to_target": "label",
            "doc_to_choice": ["no", "yes"],
            "metric_list": [{"metric": "acc"}],
        },
        "wikitext": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": wikitext_detokenizer,
            "process_results": process_results,
            "metric_list": [{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}, {"metric": "bits_per_byte"}],
        },
    }
    chosen = [
        task
        | {
            "task": f"local_{name}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": asked["files"][name]}},
            "test_split": "test",
        }
        for name, task in tasks.items()
        if name in asked["files"]
    ]
    model = HFLM(pretrained=asked["model"], dtype="float32", device="cpu", batch_size=asked["batch_size"])
    found = simple_evaluate(model=model, tasks=chosen, log_samples=True, bootstrap_iters=0)
    assert found is not None
    samples = {
        name.removeprefix("local_"): [
            [float(response[0]) for response in sample["filtered_resps"]]
            if name == "local_boolq"
            else float(_only(sample["filtered_resps"]))
            for sample in sorted(rows, key=lambda sample: int(sample["doc_id"]))
        ]
        for name, rows in found["samples"].items()
    }
    results = {name.removeprefix("local_"): values for name, values in found["results"].items()}
    answer.write_text(json.dumps({"samples": samples, "results": results, "lm_eval": version("lm_eval")}, default=str))


def _only(responses: Any) -> Any:
    """The number in however many lists of one."""
    while isinstance(responses, list | tuple):
        (responses,) = responses
    return responses


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
