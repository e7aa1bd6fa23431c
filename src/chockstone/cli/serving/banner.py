"""The banner: what a server prints on standard output once it answers."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import chockstone
from chockstone.cli.models.directory import count_parameters, format_parameters
from chockstone.cli.output.formatting import printable, write_best, write_duration, write_size
from chockstone.cli.output.terminal import print_line
from chockstone.cli.settings.settings import JournalMode, Settings, StorageSettings

_JOURNALS: Final[Mapping[JournalMode, str]] = {
    "off": "journal: off; runs are lost when this process or its worker dies",
    "on": "journal: on; runs survive a crash of this process or its worker",
    "synced": "journal: synced; runs survive a crash of this process, its worker or the machine",
}


def print_banner(settings: Settings, port: int, *, users: Sequence[str]) -> None:
    """Print what is served and how to reach it. To be called when ``port`` is bound and answers.

    ``users`` have API keys.
    """
    print_line(f"chockstone {chockstone.__version__} serves", style="bold")
    for model in settings.models:
        count = count_parameters(model.directory)
        size = "" if count is None else f", {format_parameters(count)} parameters"
        print_line(f"  {model.name} from {printable(str(model.directory))}{size}")
    print_line(f"data in {printable(str(settings.data))}")
    if settings.deployment.store is not None:
        print_line(f"checkpoints in {printable(settings.deployment.store)}")
    print_line(_JOURNALS[settings.recovery.journal])
    for line in _storage_lines(settings.storage):
        print_line(line)
    if settings.track:
        print_line(f"trackers: {', '.join(settings.track)}")
    _print_access(settings, port, users=users)


def print_replica_banner(settings: Settings, engine: str, port: int, *, users: Sequence[str]) -> None:
    print_line(f"chockstone {chockstone.__version__} is an API replica of {printable(engine)}", style="bold")
    _print_access(settings, port, users=users)


def base_url(host: str, port: int) -> str:
    """What a client on this machine calls the server."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:  # the server listens on every address; loopback is the shortest way
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://{host if address.version == 4 else f'[{host}]'}:{port}"


def _print_access(settings: Settings, port: int, *, users: Sequence[str]) -> None:
    url = settings.public_url or base_url(settings.host, port)
    print_line(f"users: {', '.join(users) or 'all on this machine; no API keys are configured'}")
    if settings.console:
        print_line(f"console: {url}/console")
    print_line()
    print_line(f"export TINKER_BASE_URL={url}")
    print_line(f"export TINKER_API_KEY={'tml-...  # your own key' if users else 'tml-local'}")
    print_line()
    sys.stdout.flush()  # a log file shows it at once, too


def _storage_lines(storage: StorageSettings) -> Iterator[str]:
    kept = []
    if storage.keep_last is not None:
        kept.append(f"the newest {storage.keep_last}")
    if storage.keep_every is not None:
        kept.append(f"steps divisible by {storage.keep_every}")
    if storage.keep_best is not None:
        kept.append(f"the best by {printable(write_best(*storage.keep_best))}")
    if kept:
        yield f"checkpoints: the server keeps {', '.join(kept)} of each run and kind"
    if storage.checkpoint_ttl is not None:
        yield f"checkpoints: deleted {write_duration(storage.checkpoint_ttl)} after they were saved"
    quotas = (("user", storage.user_quota), ("run", storage.run_quota))
    limits = [f"{write_size(quota)} per {owner}" for owner, quota in quotas if quota is not None]
    if limits:
        yield f"checkpoints: at most {', '.join(limits)}"
    if storage.trash:
        yield f"trash: deleted checkpoints can be undeleted for {write_duration(storage.trash)}"
