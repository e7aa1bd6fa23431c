"""Promotion: how a spare worker waits until it is needed.

A spare has torch and the code of its models imported, and reads no weights. While it waits, it is the first process
that the kernel's OOM killer chooses: losing it costs nothing but seconds.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

log = logging.getLogger(__name__)
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_FIRST_TO_KILL: Final = "1000"


def wait_for_promotion(sock: socket.socket, models: Iterable[str]) -> bool:
    """Wait for the server's word. Returns False if the server has closed the channel, or died."""
    with _first_to_kill(_OOM_SCORE):
        for directory in models:
            import_architecture(Path(directory))
        return bool(sock.recv(1))


def import_architecture(directory: Path) -> None:
    """Import what the model in ``directory`` needs. Never raises: the load of the model says what is wrong with it."""
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, TOKENIZER_MAPPING):
            mapping[type(config)]  # the look-up imports the module
    except Exception as error:  # noqa: BLE001  # each file format raises its own
        log.debug("architecture not imported directory=%s error=%s", directory, error)


@contextlib.contextmanager
def _first_to_kill(oom_score: Path) -> Iterator[None]:
    """Inside, the OOM killer chooses this process before others. Does nothing where the kernel has no such file."""
    try:
        usual = oom_score.read_text()
        oom_score.write_text(_FIRST_TO_KILL)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        oom_score.write_text(usual)
