"""The report to the server: rewards and other metrics of a trainer beside the losses of its run.

A Chockstone server keeps them with the metrics of the run. Another server has no such route: nothing is reported then.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from itertools import islice
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from chockstone.trainers.reports.reports import Level, StepRecord

log = logging.getLogger(__name__)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:-]{0,63}")
_SERVER: Final = "server/"  # prefix of metrics that the server has already
_SECONDS: Final = 5.0  # to wait for an answer
_MAX_WAITING: Final = 1000  # points that wait for a server that is away
_MAX_SENT: Final = 250  # of them in one request, which may have 20,000 numbers
_RETRIED: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS)

Post = Callable[[bytes], None]


class RunMetrics:
    """Posts the metrics of each step. A server that is away gets them with a later step, and stops no training."""

    def __init__(self, post: Post) -> None:
        """``post`` sends the body of a request. It raises OSError if the server does not take it."""
        self._post = post
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MAX_WAITING)
        self._is_off = False

    @classmethod
    def of_run(cls, run_id: str, *, base_url: str, api_key: str) -> RunMetrics:
        url = f"{base_url.rstrip('/')}/api/v1/training_runs/{quote(run_id, safe=':')}/metrics"
        headers = {"X-API-Key": api_key, "Content-Type": "application/json"}
        opener = _opener(url)

        def post(body: bytes) -> None:
            request = Request(url, body, headers, method="POST")  # noqa: S310  # the server that the SDK uses
            with opener.open(request, timeout=_SECONDS):
                pass

        return cls(post)

    def resume(self, step: int) -> None:
        """The run is new on the server, also if the trainer resumes."""

    def record(self, record: StepRecord) -> None:
        self._add(record.step, {name: v for name, v in record.metrics.items() if not name.startswith(_SERVER)})

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self._add(step, {f"evaluation/{name}": value for name, value in metrics.items()})

    def event(self, text: str, *, level: Level = "info") -> None:
        pass

    def close(self) -> None:
        self._send()

    def _add(self, step: int, metrics: Mapping[str, float]) -> None:
        values = {
            name: float(value) for name, value in metrics.items() if _NAME.fullmatch(name) and math.isfinite(value)
        }
        if values and not self._is_off:
            self._waiting.append({"step": step, "values": values})
            self._send()

    def _send(self) -> None:
        try:
            while self._waiting:
                points = list(islice(self._waiting, _MAX_SENT))
                self._post(json.dumps({"points": points}).encode())
                for _ in points:
                    self._waiting.popleft()
        except HTTPError as error:
            if 300 <= error.code < 500 and error.code not in _RETRIED:
                log.debug("the server takes no metrics of the trainer status=%d", error.code)
                self._is_off = True
                self._waiting.clear()
        except OSError as error:  # it is away: the next step tries again
            log.debug("metrics of the trainer not sent error=%s", error)


class _NoRedirects(HTTPRedirectHandler):
    """An API key reaches no other host."""

    def redirect_request(self, *_: Any) -> None:  # Any: as urllib calls it
        return None


def _opener(url: str) -> OpenerDirector:
    is_loopback = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    return build_opener(_NoRedirects, *([ProxyHandler({})] if is_loopback else []))
