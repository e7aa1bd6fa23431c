"""Reports how far models are loaded: as a bar on a terminal, and as log lines anywhere else."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, Final

from tqdm import tqdm
from transformers.utils import logging as transformers_logging

from chockstone.backends.planning.refusals import available_bytes
from chockstone.backends.quantisation.layers import count_parameters
from chockstone.backends.training.base_model import BaseModel

log = logging.getLogger(__name__)
_QUIET_SECONDS: Final = 10.0  # between two log lines


@contextmanager
def report_loading(
    name: str, *, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[BaseModel], None]]:
    """Reports while the block loads a model. The block calls what this yields with the loaded model.

    transformers counts the weights that it has read, and says so to a hook. A version without that hook has no bar.
    """
    started = monotonic()
    is_terminal = sys.stderr.isatty()

    def report(factory: Callable[..., Any], values: tuple[Any, ...], options: dict[str, Any]) -> Any:  # Any: tqdm's
        if not values:
            return factory(*values, **options)  # a bar that is moved by hand
        if is_terminal:
            return tqdm(values[0], desc=f"loading {name}", unit=" weights", leave=False, file=sys.stderr)
        return logged_progress(values[0], name, monotonic=monotonic)

    def loaded(base: BaseModel) -> None:
        log.info(
            "model loaded model=%s parameters=%d seconds=%.1f dtype=%s precision=%s bytes=%d device=%s "
            "available_bytes=%s",
            *(name, count_parameters(base.model), monotonic() - started, str(base.dtype).removeprefix("torch.")),
            *(base.precision, base.weight_bytes, base.device, available_bytes(base.device)),
        )

    log.info("model loading model=%s", name)
    set_hook: Callable[..., Any] = getattr(transformers_logging, "set_tqdm_hook", lambda _: None)
    before = set_hook(report)
    try:
        yield loaded
    finally:
        set_hook(before)


def logged_progress(
    items: Iterable[Any], name: str, *, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[Any]:  # Any: what transformers iterates over
    """The items; a line is logged every few seconds meanwhile."""
    total = len(items) if isinstance(items, Sized) else None
    said = monotonic()
    for done, item in enumerate(items):
        if monotonic() - said >= _QUIET_SECONDS:
            said = monotonic()
            log.info("model loading model=%s weights=%d of=%s", name, done, "?" if total is None else total)
        yield item
