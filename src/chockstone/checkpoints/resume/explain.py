"""Audits: what a next attempt would go on from, and what the last one wrote down. Claims and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from chockstone.checkpoints.errors import CheckpointError, CheckpointMissing, DamagedArchive
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.claims import Claim
from chockstone.checkpoints.resume.attempts.cost import Spent
from chockstone.checkpoints.resume.attempts.flyte_native import StockForm, list_flyte_native
from chockstone.checkpoints.resume.attempts.generations import CHAIN
from chockstone.checkpoints.resume.attempts.places import FOLDER, PATIENCE, AttemptPlace, AttemptPlaces, normalise
from chockstone.checkpoints.resume.attempts.roots import attempt_place, attempts_in, earlier_attempts, named_places
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.checkpoints.resume.walk.report import MAX_BYTES, RECORD, ResumeReport
from chockstone.checkpoints.resume.walk.rules import ResumeRules
from chockstone.checkpoints.stores.bucket import RetryPolicy


def explain(
    uri: str | os.PathLike[str],
    *,
    identity: str | Mapping[str, str] | None = None,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    attempt: int | None = None,
    earlier: Sequence[tuple[int, str]] = (),
    patience: RetryPolicy = PATIENCE,
) -> ResumeReport:
    """What the next attempt below a root would find, or a restart in the place of a single one; reads no payload.

    Of a single one, ``attempt`` is its number, and ``earlier`` are numbers and places of those before it, newest first,
    for who can tell them from its path.

    Goes by the rules that the newest attempt there recorded, and takes ``identity`` from its claim if nobody says
    whose it must be. The outcome tells what would be done. Raises InvalidName for what is no place, and StoreError
    where even the root cannot be listed.
    """
    root, places = _root(uri), AttemptPlaces(patience=patience)
    numbers = attempts_in(places, root)
    told = _told(places, [*_newest_first(root, numbers), *(place for _, place in earlier)])
    if isinstance(identity, str):
        identity = {CHAIN: identity}
    elif identity is None:
        identity = told.claim.identity if told.claim else {CHAIN: PurePosixPath(root).name}
    before = earlier_attempts(root, reversed(numbers))
    if numbers:
        attempt = numbers[-1] + 1
        own, notes = attempt_place(root, attempt), []
    else:
        before = [Candidate(place, Origin.DERIVED, number) for number, place in earlier]
        if attempt is None and told.claim is not None:
            attempt = told.claim.attempt
        own, notes = root, [told.fence] if told.fence else []
    chain = Chain(
        places,
        own,
        identity=identity,
        attempt=attempt,
        candidates=[*before, *named_places(places, sources)],
        rules=told.rules,
        notes=notes,
        is_looking_only=True,
        since=Spent(),
    )
    return chain.explain()


def recorded(uri: str | os.PathLike[str], *, patience: RetryPolicy = PATIENCE) -> ResumeReport:
    """What the newest attempt that wrote it down found when it resumed: below a root, or in one place.

    Raises CheckpointMissing where none did.
    """
    root, places = _root(uri), AttemptPlaces(patience=patience)
    silent: list[str] = []
    for place in map(places.open, _newest_first(root, attempts_in(places, root))):
        try:
            report = _record(place)
        except CheckpointMissing:
            silent.append(place.uri)
            continue
        later = tuple(f"{uri} came later and recorded nothing" for uri in silent)
        return replace(report, notes=(*report.notes, *later))
    raise CheckpointMissing(f"no attempt at {root} has recorded how it resumed")


@dataclass(frozen=True, slots=True)
class _Told:
    """What the newest attempt of a chain says of itself, as far as it can be read."""

    claim: Claim | None
    rules: ResumeRules
    fence: str = ""


def _root(uri: str | os.PathLike[str]) -> str:
    """The folder of records that belongs to a place stands for the place."""
    return normalise(normalise(uri).removesuffix(FOLDER))


def _newest_first(root: str, numbers: Sequence[int]) -> list[str]:
    return [attempt_place(root, number) for number in reversed(numbers)] or [root]


def _told(places: AttemptPlaces, uris: Sequence[str]) -> _Told:
    """By the newest of these places that says anything."""
    rules: ResumeRules | None = None
    for place in map(places.open, uris):
        rules = rules or _rules(place)
        try:
            attempt = Attempt.look(place)
        except CheckpointError:
            continue  # the walk comes to it, and says what is wrong with it
        if (claim := _newest_claim(attempt)) is not None:
            return _Told(claim, rules or ResumeRules(stock=_form(place)), _fence(attempt))
    return _Told(None, rules or ResumeRules(stock=_form(places.open(uris[0]))))


def _newest_claim(attempt: Attempt) -> Claim | None:
    for number in reversed(attempt.log.claims):
        with suppress(CheckpointError):
            claim = attempt.claim(number)
            if claim is not None and claim.kind == "claim":
                return claim
    return None


def _fence(attempt: Attempt) -> str:
    """What to know about a place that a later attempt has shut."""
    with suppress(CheckpointError):
        last = attempt.claim(attempt.log.last)
        if last is not None and last.kind == "fence":
            return f"{attempt.place.uri} was shut by {last.by}, which is where the chain goes on"
    return ""


def _rules(place: AttemptPlace) -> ResumeRules | None:
    """Those of an attempt, out of its report. Whatever is not understood is as it is by default."""
    try:
        settings = _record(place).settings
    except CheckpointError:
        return None
    stock, legacy, on_unreadable = (settings.get(name) for name in ("stock", "legacy", "on_unreadable"))
    poison_after = settings.get("poison_after")
    return ResumeRules(
        on_unreadable="older" if on_unreadable == "older" else "stop",
        legacy="reject" if legacy == "reject" else "accept",
        stock="tree" if stock == "tree" else "object" if stock == "object" else None,
        poison_after=poison_after if type(poison_after) is int and poison_after > 0 else None,
    )


def _form(place: AttemptPlace) -> StockForm | None:
    """How files of a stock writer stand there, if any do."""
    forms: tuple[StockForm, ...] = ("tree", "object")
    for form in forms:
        with suppress(CheckpointError):
            if list_flyte_native(place, form):
                return form
    return None


def _record(place: AttemptPlace) -> ResumeReport:
    content = place.read(RECORD, MAX_BYTES)
    try:
        return ResumeReport.from_json(content)
    except ValueError as error:
        raise DamagedArchive(f"{RECORD} of {place.uri} cannot be read: {error}") from error
