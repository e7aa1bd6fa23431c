"""Models that are named as on the Hugging Face hub: their directories in the local cache, downloaded where needed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from chockstone.cli.models.hub import ModelNotFetched, fetch, find_cached
from chockstone.cli.settings.values import ModelSetting

log = logging.getLogger(__name__)


def fetch_models(models: Sequence[ModelSetting]) -> tuple[ModelSetting, ...]:
    """The models with directories that exist. A download may take long. Raises ModelNotFetched."""
    return tuple(replace(model, directory=_fetch(model)) if model.is_on_hub else model for model in models)


def _fetch(model: ModelSetting) -> Path:
    if (cached := find_cached(model.name)) is not None:
        return cached
    from huggingface_hub import constants

    log.info(
        "model is not on this machine, downloading it model=%s hub=%s missing_directory=%s",
        model.name,
        constants.ENDPOINT,
        model.directory,
    )
    try:
        return fetch(model.name)
    except ModelNotFetched as error:
        raise ModelNotFetched(
            f"cannot serve the model {model.name!r}: there is no directory {str(model.directory)!r}, and the Hugging "
            f"Face cache has no complete copy. It was not downloaded: {error}. Run `chockstone model pull "
            f"{model.name}` where a hub can be reached, set HF_ENDPOINT to another hub, or name a directory with "
            f"--model {model.name}=DIRECTORY",
            may_pass=error.may_pass,
        ) from error
