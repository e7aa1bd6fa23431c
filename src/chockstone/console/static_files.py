"""Static files: style sheets, scripts and fonts of the console, kept in memory and cached by browsers for a year.

The URL has a digest of all files in it, so an upgraded server has new URLs.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final

from fastapi import APIRouter, HTTPException, Request, Response

_TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".txt": "text/plain",
}
_COMPRESSED: Final = frozenset({".css", ".js", ".svg"})
_FOREVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    compressed: bytes | None
    media_type: str


class StaticFiles:
    """Reads all files when it is made: they are few and small."""

    def __init__(self) -> None:
        found = dict(sorted(_walk(files("chockstone.console") / "static", "")))
        self._files = {path: _static_file(path, content) for path, content in found.items()}
        digest = hashlib.sha256()
        for path, content in found.items():
            digest.update(f"{path} {len(content)} ".encode() + content)
        self.digest = digest.hexdigest()[:16]

    def path(self, name: str) -> str:
        """The path of a file below the console. Raises KeyError if there is no such file."""
        if name not in self._files:
            raise KeyError(name)
        return f"/static/{self.digest}/{name}"

    def routes(self) -> APIRouter:
        routes = APIRouter()

        @routes.get("/static/{digest}/{name:path}")
        async def static_file(digest: str, name: str, request: Request) -> Response:
            if (found := self._files.get(name)) is None:
                raise HTTPException(404, "the console has no such file")
            # A page that an earlier version of the server made may ask for what is another file now.
            headers = {"Cache-Control": _FOREVER if digest == self.digest else "no-store"}
            if found.compressed is None:
                return Response(found.content, media_type=found.media_type, headers=headers)
            headers["Vary"] = "Accept-Encoding"
            if "gzip" in request.headers.get("accept-encoding", ""):
                headers["Content-Encoding"] = "gzip"
                return Response(found.compressed, media_type=found.media_type, headers=headers)
            return Response(found.content, media_type=found.media_type, headers=headers)

        return routes


@cache
def static_files() -> StaticFiles:
    """The same for every console of a process."""
    return StaticFiles()


def _static_file(path: str, content: bytes) -> StaticFile:
    suffix = PurePosixPath(path).suffix
    compressed = gzip.compress(content, 6, mtime=0) if suffix in _COMPRESSED else None
    return StaticFile(content, compressed, _TYPES[suffix])


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _walk(each, f"{prefix}{each.name}/")
        elif PurePosixPath(each.name).suffix in _TYPES:
            found.append((prefix + each.name, each.read_bytes()))
    return found
