"""Writes http-api.md from the routes themselves. `make reference` runs it; a test holds it current."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import get_args, get_origin, get_type_hints

from fastapi.routing import APIRoute

from chockstone.api.app import RESOURCES, VENDOR_RESOURCES
from chockstone.api.operations import metrics
from chockstone.api.users import caller_of

PAGE = Path(__file__).with_name("http-api.md")
ANSWERS = {
    "AcceptedResponse": "a future",
    "Response": "",
    "StreamingResponse": "server-sent events",
}  # else the name of a message in ``wire``
INTRODUCTION = """\
# The HTTP API

`make reference` writes this page from the routes. Most users call the SDK instead:
[Train with the Tinker SDK](../guides/train-with-tinker.md). A running server shows the schema of each message at
`/docs` and `/openapi.json`.

Paths are relative to `/api/v1`, except `/metrics` and the paths of other vendors' APIs. Messages have the names of the
classes in `src/chockstone/wire`.

## API key

Each request carries one `X-API-Key` header. Its value is an API key (`tml-…`) or a token from `POST auth/token`, which
is valid for one hour. `/openapi.json` declares this header as the security scheme `ApiKey`.

```console
$ curl --header "X-API-Key: $TINKER_API_KEY" "$TINKER_BASE_URL/api/v1/auth/apikey/me"
```

- Operators create keys with `chockstone keys create USER`: [Users and limits](../guides/users-and-limits.md).
- A server without keys listens on loopback only and accepts any key that starts with `tml-`.
- {public}, `/`, `/docs` and `/openapi.json` need no key. The URLs of downloads and traces are signed and expire.
- The server answers 401 to a request without a valid key.

## Futures and errors

- A route that answers with a future returns at once. `retrieve_future` fetches its result:
  [Lanes and futures](../concepts/lanes-and-futures.md).
- Errors are `{{"detail": …}}`. Clients retry 408, 409, 429 and 5xx, and no other status.
- Below `/v1` and `/oai` errors have the shape of OpenAI's API, below `/anthropic` that of Anthropic's. There the key
  may also be sent as `Authorization: Bearer KEY`.
"""


def render() -> str:
    resources = (*RESOURCES, metrics)
    routes = [route for resource in resources for route in resource.routes.routes]
    public = [*dict.fromkeys(path_of(route) for route in routes if not needs_key(route))]
    listed = ", ".join(f"`{path}`" for path in public[:-1]) + f" and `{public[-1]}`"
    of_vendors = [section(each, prefix) for prefix, resources in VENDOR_RESOURCES.items() for each in resources]
    return "\n".join((INTRODUCTION.format(public=listed), *map(section, resources), *of_vendors))


def needs_key(route: APIRoute) -> bool:
    """Whether the OpenAPI document declares a credential for the route."""
    return any(each.call is caller_of for each in route.dependant.dependencies)


def path_of(route: APIRoute) -> str:
    return route.path if route in metrics.routes.routes else route.path.removeprefix("/")


def section(resource: ModuleType, prefix: str = "") -> str:
    """A resource's file: what it says of itself, and its routes. ``prefix``: of paths that are not below ours."""
    title, _, what = (inspect.getdoc(resource) or "").splitlines()[0].partition(": ")
    rows = "\n".join(row(route, prefix) for route in resource.routes.routes)
    return f"## {title}\n\n{what[:1].upper()}{what[1:]}\n\n| request | takes | answers | |\n|---|---|---|---|\n{rows}\n"


def row(route: APIRoute, prefix: str = "") -> str:
    hints = get_type_hints(route.endpoint)
    returned = hints.pop("return")
    answered = route.response_model or route.responses.get(200, {}).get("model") or returned
    kinds = () if get_origin(answered) is dict else get_args(answered) or (answered,)
    answers = [ANSWERS.get(kind.__name__, f"`{kind.__name__}`") for kind in kinds]
    body = [hint.__name__ for hint in hints.values() if getattr(hint, "__module__", "").startswith("chockstone.wire")]
    said = (inspect.getdoc(route.endpoint) or "").partition("\n\n")[0].replace("``", "`")
    cells = (
        f"{', '.join(sorted(route.methods or ()))} `{prefix + route.path if prefix else path_of(route)}`",
        " ".join(f"`{name}`" for name in body),
        " or ".join(answers),
        " ".join(said.split()),
    )
    return f"| {' | '.join(cells)} |".replace("  ", " ")


if __name__ == "__main__":
    PAGE.write_text(render())
