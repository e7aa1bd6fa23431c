"""Models of the Hugging Face hub: found in the local cache, or downloaded into it.

Only weights in safetensors, configuration and tokenizer files are downloaded: no pickles, and no code. Environment
variables are those of ``huggingface_hub``: HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE.
"""

from __future__ import annotations

import glob
import io
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from chockstone.backends.export.model_files import check_weights
from chockstone.cli.models.directory import read_config
from chockstone.cli.output.formatting import format_size
from chockstone.cli.output.terminal import bytes_bar
from chockstone.wire.failures import ServerFailure

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

log = logging.getLogger(__name__)
_WANTED: Final = ("*.safetensors", "*.json", "*.txt", "*.jinja", "tokenizer.model", "*.tiktoken")
_UNWANTED: Final = (
    "consolidated*",  # a second copy of the weights, in another layout
    "adapter_*",  # of PEFT: transformers would load the adapter, too
)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_BLOB: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_REPORT_SHARE: Final = 0.1  # of a download, between two log lines
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt")


class ModelNotFetched(Exception):
    """A model is neither in the cache nor can it be downloaded; the message says why and what to do."""

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        """``may_pass``: the next attempt may succeed, as after a broken connection."""
        super().__init__(message)
        self.may_pass = may_pass


@dataclass(frozen=True, slots=True)
class HubFile:
    name: str
    size_bytes: int
    blob: str  # name of its bytes in the cache, the same in all revisions


def find_cached(name: str, *, revision: str | None = None) -> Path | None:
    """The directory of a complete model in the local Hugging Face cache. Asks no server."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        found = snapshot_download(
            name,
            revision=revision,
            cache_dir=constants.HF_HUB_CACHE,
            allow_patterns=list(_WANTED),
            ignore_patterns=[*_UNWANTED, "*/*"],
            local_files_only=True,
        )
    except (OSError, HFValidationError):
        return None
    directory = Path(found)
    return directory if is_complete(directory) else None


def fetch(name: str, *, revision: str | None = None) -> Path:
    """Download a model, or the files of it that the cache does not have. Raises ModelNotFetched."""
    from huggingface_hub import HfApi, constants, snapshot_download

    with _explained(name, revision):
        info = HfApi(endpoint=constants.ENDPOINT).model_info(name, revision=revision, files_metadata=True)
        commit = _commit(info)
        files = _choose_files(name, info)
        missing = [file for file in files if not _is_cached(name, file, commit)]
        total_bytes = sum(file.size_bytes for file in missing)
        _check_space(total_bytes, Path(constants.HF_HUB_CACHE))
        started = time.monotonic()
        log.info(
            "model download started model=%s revision=%s files=%d bytes=%d", name, commit, len(missing), total_bytes
        )
        with bytes_bar(f"{name} ({format_size(total_bytes)})", total_bytes) as advance:
            relay = _relay(_ByteCount(name, total_bytes, advance))
            directory = snapshot_download(
                name,
                revision=commit,  # a branch may have moved since
                cache_dir=constants.HF_HUB_CACHE,
                endpoint=constants.ENDPOINT,
                allow_patterns=[glob.escape(file.name) for file in files],
                tqdm_class=relay,
            )
        _record_revision(name, revision or constants.DEFAULT_REVISION, commit)
    seconds = time.monotonic() - started
    log.info("model downloaded model=%s bytes=%d seconds=%.1f directory=%s", name, total_bytes, seconds, directory)
    if not is_complete(Path(directory)):
        raise ModelNotFetched(
            f"the files of model {name!r} on the hub {constants.ENDPOINT} are no whole model: config.json, a tokenizer "
            f"or weights in safetensors are missing{_weights_problem(Path(directory))}. Choose another model, or "
            "another revision"
        )
    return Path(directory)


def is_complete(directory: Path) -> bool:
    """Whether a directory has a configuration, a tokenizer, and all weights in safetensors."""
    try:
        read_config(directory)
        check_weights(directory)
    except (ValueError, ServerFailure):
        return False
    return any((directory / name).is_file() for name in _TOKENIZERS)


def _weights_problem(directory: Path) -> str:
    try:
        check_weights(directory)
    except ServerFailure as error:
        return f" ({error})"
    return ""


@contextmanager
def _explained(name: str, revision: str | None) -> Iterator[None]:
    """Raises ModelNotFetched instead of what ``huggingface_hub`` raises."""
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    http_error: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]  # of the HTTP library that it uses
    try:
        yield
    except errors.HFValidationError as error:
        raise ModelNotFetched(f"{name!r} cannot be a name on a hub: {error}") from error
    except errors.GatedRepoError as error:
        raise ModelNotFetched(
            f"the hub {hub} gives model {name!r} only to users who accepted its conditions: accept them there, and set "
            "HF_TOKEN to a token of that user"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelNotFetched(f"model {name!r} on the hub {hub} has no revision {revision!r}; name another") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFetched(
            f"the hub {hub} has no model {name!r} that you may read: check its name, or set HF_TOKEN if it is private"
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise ModelNotFetched(
            "offline mode is on: unset HF_HUB_OFFLINE to download it, or copy it into the cache"
        ) from error
    except (OSError, http_error) as error:
        raise ModelNotFetched(f"the download from {hub} failed: {_reason(error)}", may_pass=True) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:  # what foreign JSON can bring
        raise ModelNotFetched(
            f"the hub {hub} gave a malformed answer about model {name!r}: {_reason(error)}. Check HF_ENDPOINT, or "
            "choose another model"
        ) from error


def _reason(error: BaseException) -> str:
    """The first line of the deepest cause: ``huggingface_hub`` wraps errors of connections and disks."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _choose_files(name: str, info: ModelInfo) -> list[HubFile]:
    """Files at the top of the repository that a server needs. Raises ModelNotFetched if none is of safetensors."""
    found = [
        HubFile(sibling.rfilename, sibling.size or 0, str(sibling.lfs.sha256 if sibling.lfs else sibling.blob_id))
        for sibling in info.siblings or ()
    ]
    top = [file for file in found if "/" not in file.name]
    chosen = [file for file in top if _matches(file.name, _WANTED) and not _matches(file.name, _UNWANTED)]
    if any(file.name.endswith(".safetensors") for file in chosen):
        return chosen
    has_pickles = any(file.name.endswith(_PICKLES) for file in top)
    only = "only pickle files (.bin), which can run code when they are read" if has_pickles else "no weights"
    raise ModelNotFetched(
        f"model {name!r} has {only}: only weights in safetensors are downloaded. Choose a revision with safetensors, "
        "or convert the model with `save_pretrained(DIRECTORY)` and serve that directory"
    )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(PurePosixPath(name).match(pattern) for pattern in patterns)


def _commit(info: ModelInfo) -> str:
    if not _COMMIT.fullmatch(info.sha or ""):
        raise ValueError(f"{info.sha!r} is not the hash of a commit")
    return str(info.sha)


def _is_cached(name: str, file: HubFile, commit: str) -> bool:
    from huggingface_hub import constants, try_to_load_from_cache

    if _BLOB.fullmatch(file.blob) and (_folder(name) / "blobs" / file.blob).is_file():
        return True
    return isinstance(try_to_load_from_cache(name, file.name, cache_dir=constants.HF_HUB_CACHE, revision=commit), str)


def _check_space(needed_bytes: int, cache: Path) -> None:
    disk = next(path for path in (cache, *cache.absolute().parents) if path.is_dir())
    free_bytes = shutil.disk_usage(disk).free
    if needed_bytes > free_bytes:
        raise ModelNotFetched(
            f"it needs {format_size(needed_bytes)} and {str(disk)!r} has {format_size(free_bytes)} free: "
            f"{format_size(needed_bytes - free_bytes)} are missing. Free space there, or set HF_HOME to a directory on "
            "another disk"
        )


def _record_revision(name: str, revision: str, commit: str) -> None:
    """Have the cache find the commit by the name of a branch or tag, as ``huggingface_hub`` does for a download."""
    refs = _folder(name) / "refs"
    ref = Path(os.path.normpath(refs / revision))
    if revision == commit or refs not in ref.parents or (ref.is_file() and ref.read_text() == commit):
        return
    ref.parent.mkdir(parents=True, exist_ok=True)
    partial = ref.with_name(f"{ref.name}.{uuid.uuid4().hex[:8]}.tmp")
    partial.write_text(commit)
    partial.replace(ref)


def _folder(name: str) -> Path:
    """Of a model in the cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(os.path.abspath(constants.HF_HUB_CACHE)) / repo_folder_name(repo_id=name, repo_type="model")


class _ByteCount:
    """Sums up what bars of ``huggingface_hub`` count, for our own bar and the log."""

    def __init__(self, model: str, total_bytes: int, advance: Callable[[int], None]) -> None:
        self._model = model
        self._total_bytes = total_bytes
        self._advance = advance
        self._done_bytes = 0
        self._next_report_bytes = _REPORT_SHARE * total_bytes

    def reach(self, done_bytes: int) -> None:
        if done_bytes <= self._done_bytes:
            return
        self._advance(done_bytes - self._done_bytes)
        self._done_bytes = done_bytes
        if self._next_report_bytes <= done_bytes < self._total_bytes:
            log.info("model downloading model=%s bytes=%d of=%d", self._model, done_bytes, self._total_bytes)
            self._next_report_bytes = done_bytes + _REPORT_SHARE * self._total_bytes


class _Unseen(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


def _relay(count: _ByteCount) -> type[Any]:  # Any: tqdm has no types
    """A tqdm class that shows nothing and reports bytes. Bars may count the same bytes, so the largest one counts."""
    from tqdm import tqdm

    class Relay(tqdm):  # type: ignore[misc]  # tqdm has no types
        def __init__(self, *values: Any, **options: Any) -> None:  # Any: tqdm's own
            options.pop("name", None)
            super().__init__(*values, **{**options, "file": _Unseen(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            if self.unit == "B":
                count.reach(int(self.n))
            return shown

    return Relay
