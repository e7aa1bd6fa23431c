"""Shutdown: one flag that tells every part of the engine that the server is stopping."""

from __future__ import annotations


class Shutdown:
    def __init__(self) -> None:
        self._has_begun = False

    @property
    def has_begun(self) -> bool:
        return self._has_begun

    def begin(self) -> None:
        """From here on nothing new is started. What is left is the next server's work."""
        self._has_begun = True
