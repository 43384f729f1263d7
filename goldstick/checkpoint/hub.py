"""Pushing a finished checkpoint to the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import goldstick
from goldstick.errors import OutputError, UsageError

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


def check_repository(name: str | None) -> None:
    """Refuse what cannot be a repository's name, before any work is done.

    Raises:
        UsageError: It is not ``owner/name``.
    """
    if name is None:
        return
    if not _HUB_ID.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a repository on the hub; write owner/name.")
    from huggingface_hub import utils
    from huggingface_hub.errors import HFValidationError

    validator: Any = utils
    try:
        validator.validate_repo_id(name)
    except HFValidationError as error:  # such as a name that ends in .git, which would be refused when all is done
        raise UsageError(f"{name!r} is no name of a repository on the hub: {str(error).rstrip('.')}.") from error


def push_to_hub(directory: Path, name: str, *, private: bool = False) -> str:
    """Upload every file of a finished checkpoint in one commit, making the repository where there is none.

    Args:
        directory: The checkpoint.
        name: ``owner/name``.
        private: Whether a repository that is made is private.

    Returns:
        Its address.

    Raises:
        UsageError: The name is none.
        OutputError: The hub was not reached, refused, or holds other weights under that name. The checkpoint on disk
            is finished whatever happens; the message says where it lies and how to push it again.
    """
    from huggingface_hub import HfApi, constants, get_token

    check_repository(name)
    if constants.HF_HUB_OFFLINE:
        raise _not_pushed(directory, name, "HF_HUB_OFFLINE is set.")
    try:
        token = get_token()
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        raise _not_pushed(directory, name, f"The token cannot be read: {error}.") from error
    if not token:
        raise _not_pushed(directory, name, "There is no token: run 'hf auth login', or set HF_TOKEN.")
    hub: Any = HfApi(library_name="goldstick", library_version=goldstick.__version__)
    try:
        address = str(hub.create_repo(name, private=private, exist_ok=True))
        strangers = _other_weights(hub.list_repo_files(name), directory)
        if not strangers:
            hub.upload_folder(
                repo_id=name,
                folder_path=directory,
                commit_message=f"Checkpoint made by goldstick {goldstick.__version__}",
            )
    except Exception as error:  # the hub's client raises many kinds, its HTTP library's among them
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise _not_pushed(
            directory, name, f"The hub was asked and {type(error).__name__} came back: {reason.rstrip('.')}."
        ) from error
    if strangers:
        raise _not_pushed(
            directory, name, f"It holds other weights, {strangers[0]} for one, that loaders would mix with these."
        )
    return address


def _other_weights(files: list[str], directory: Path) -> list[str]:
    return sorted(file for file in files if file.endswith(".safetensors") and not (directory / file).is_file())


def _not_pushed(directory: Path, name: str, reason: str) -> OutputError:
    return OutputError(
        f"The checkpoint is finished and lies in {directory}, but was not pushed to {name}. {reason} Once that is put "
        f"right, 'hf upload {name} {directory}' pushes it."
    )
