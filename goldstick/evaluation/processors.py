"""Processors: what makes a model's inputs of images, recordings and texts, read from the model's directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from goldstick.errors import SourceError, UsageError

ProcessorKind = Literal["image", "audio", "several"]

_CALLED = {"image": "image processor", "audio": "feature extractor", "several": "processor"}


def read_processor(directory: Path, kind: ProcessorKind, config: Any = None) -> Any:
    """The image processor, the feature extractor, or the processor of several kinds of input in a directory.

    No downloads, and no code of the directory's own is run.

    Args:
        directory: The model's directory.
        kind: Which of them.
        config: The model's configuration, which says whose image processor it is where the directory does not.

    Raises:
        UsageError: It needs a package that is not installed.
        SourceError: There is none that transformers can read.
    """
    import transformers

    auto: Any = {
        "image": transformers.AutoImageProcessor,
        "audio": transformers.AutoFeatureExtractor,
        "several": transformers.AutoProcessor,
    }[kind]
    options = {} if kind == "audio" else {"backend": "pil"}  # the same pixels with torchvision and without
    options |= {} if config is None else {"config": config}
    try:
        with no_foreign_code():
            return auto.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False, **options)
    except ImportError as error:
        reason = " ".join(str(error).split())[:300]
        raise UsageError(
            f"{directory}: its {_CALLED[kind]} needs a package that is not installed ({reason}): pip install "
            "'goldstick[eval]' for images, 'goldstick[audio]' for audio"
        ) from error
    except Exception as error:  # whatever transformers' classes raise on files that are missing or odd
        reason = " ".join(str(error).split())[:300]
        raise SourceError(
            f"{directory}: its {_CALLED[kind]}, which such data need, cannot be read ({reason}). Use data that this "
            "model reads, or copy preprocessor_config.json (and processor_config.json, where there is one) of "
            "the model it was made from beside its weights"
        ) from error


@contextmanager
def no_foreign_code() -> Iterator[None]:
    """Have transformers refuse a directory's own code where it would ask on the terminal whether to run it.

    ``trust_remote_code=False`` does not reach everywhere: a file may name any class of transformers as a tokenizer or a
    processor, and some of those look for code themselves.
    """
    from transformers import dynamic_module_utils

    seconds = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0  # seconds to wait for an answer; at 0 nobody is asked
    try:
        yield
    finally:
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = seconds
