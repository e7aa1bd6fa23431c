"""Writes http-api.md from the routes themselves. `make reference` runs it; a test holds it current."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import get_args, get_type_hints

from fastapi.routing import APIRoute

from chockstone.api.app import RESOURCES
from chockstone.api.operations import metrics

PAGE = Path(__file__).with_name("http-api.md")
ANSWERS = {"AcceptedResponse": "a future", "Response": ""}  # else the name of a message in ``wire``
INTRODUCTION = """\
# The HTTP API

Written by `make reference` from the routes. Paths are below `/api/v1`, but for `/metrics`. Every one but that,
`healthz`, `downloads` and `traces` wants `X-API-Key`, a key (`tml-…`) or a token from `auth/token`. A running
server describes itself in full at `/docs` and `/openapi.json`.
Most people want the SDK instead: [Train with the Tinker SDK](../guides/train-with-tinker.md).

Messages are named as in `src/chockstone/wire`. Answers that are futures are fetched with `retrieve_future`:
[Lanes and futures](../concepts/lanes-and-futures.md). Errors are `{"detail": …}`. Clients repeat 408, 409, 429 and 5xx,
and nothing else.
"""


def render() -> str:
    return "\n".join((INTRODUCTION, *(section(resource) for resource in (*RESOURCES, metrics))))


def section(resource: ModuleType) -> str:
    """A resource's file: what it says of itself, and its routes."""
    title = (inspect.getdoc(resource) or "").splitlines()[0].rstrip(".")
    rows = "\n".join(row(route) for route in resource.routes.routes)
    return f"## {title}\n\n| | takes | answers | |\n|---|---|---|---|\n{rows}\n"


def row(route: APIRoute) -> str:
    hints = get_type_hints(route.endpoint)
    returned = hints.pop("return")
    answered = route.response_model or returned
    answers = [ANSWERS.get(kind.__name__, f"`{kind.__name__}`") for kind in get_args(answered) or (answered,)]
    body = [hint.__name__ for hint in hints.values() if getattr(hint, "__module__", "").startswith("chockstone.wire")]
    said = (inspect.getdoc(route.endpoint) or "").partition("\n\n")[0].replace("``", "`")
    path = route.path if route in metrics.routes.routes else route.path.removeprefix("/")
    cells = (
        f"{', '.join(sorted(route.methods or ()))} `{path}`",
        " ".join(f"`{name}`" for name in body),
        " or ".join(answers),
        " ".join(said.split()),
    )
    return f"| {' | '.join(cells)} |".replace("  ", " ")


if __name__ == "__main__":
    PAGE.write_text(render())
