"""generation_config.json: how a model writes by default, which transformers reads whenever it loads one that writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from goldstick.errors import SourceError

#: Settings of how tokens are drawn → the value with which they do nothing.
_OF_SAMPLING: dict[str, Any] = {
    "do_sample": False,
    "temperature": 1,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "top_h": 1,
    "typical_p": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
}

#: The same of those that greedy answers depend on, too.
_OF_ALL: dict[str, Any] = {
    "num_beams": 1,
    "repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "penalty_alpha": 0,
    "guidance_scale": 1,
    "min_length": 0,
    "min_new_tokens": 0,
    "exponential_decay_length_penalty": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "bad_words_ids": None,
    "sequence_bias": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "stop_strings": None,
    "watermarking_config": None,
}


def read_generation_config(directory: Path, model: Any) -> Any:
    """What transformers makes of the file beside a model.

    Args:
        directory: The checkpoint.
        model: Its transformers model, possibly on the meta device.

    Returns:
        The generation config; ``None`` where there is no file, where it is no JSON, which transformers takes for none,
        or where the model does not write.

    Raises:
        SourceError: transformers refuses the file, and so the model.
    """
    file, own = directory / "generation_config.json", getattr(model, "generation_config", None)
    if own is None or not file.is_file():
        return None
    try:
        return type(own).from_pretrained(directory, local_files_only=True)
    except OSError:
        return None
    except Exception as error:  # a stranger's values meet code that expects none of them
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise SourceError(
            f"{file}: transformers refuses it, and would not load the model: {reason.rstrip('.')}. Correct the file, "
            "or remove it: the model then writes by transformers' own settings."
        ) from error


def unfollowed_settings(model: Any) -> dict[str, Any]:
    """What a model's generation config says of how tokens are chosen, and goldstick does not do by itself.

    Tokens that end a text are followed. Settings of sampling count where it is asked for, values that do nothing not.

    Args:
        model: A transformers model.
    """
    config = getattr(model, "generation_config", None)
    found: dict[str, Any] = {}
    sampled = bool(getattr(config, "do_sample", False))
    for names in (_OF_SAMPLING if sampled else {}, _OF_ALL):
        for name, without in names.items():
            value = getattr(config, name, None)
            if value is not None and value != without and value != []:
                found[name] = value
    return found
