"""Explain which checkpoint the next attempt would resume from, or show the report of the last one. Writes nothing."""

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
from chockstone.checkpoints.resume.attempts.cost import CostSnapshot
from chockstone.checkpoints.resume.attempts.flyte_native import FlyteNativeForm, list_flyte_native
from chockstone.checkpoints.resume.attempts.generations import CHAIN
from chockstone.checkpoints.resume.attempts.places import FOLDER, RETRY_POLICY, AttemptPlace, AttemptPlaces, normalise
from chockstone.checkpoints.resume.attempts.roots import attempt_place, attempts_in, earlier_attempts, named_places
from chockstone.checkpoints.resume.checkpointer_directory import explain_checkpointer
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
    retry_policy: RetryPolicy = RETRY_POLICY,
) -> ResumeReport:
    """Report what the next attempt below a root would restore, or a restart in the place of one attempt.

    For the place of one attempt, ``attempt`` is its number, and ``earlier`` are numbers and places of the attempts
    before it, newest first.

    For the directory of a Checkpointer, report what ``Checkpointer.restore`` would restore.

    Uses the settings that the newest attempt recorded, and by default the ``identity`` of its claim. Reads no payload.
    Raises InvalidName if ``uri`` cannot be a place, and StoreError if the root cannot be listed.
    """
    root, places = _root(uri), AttemptPlaces(retry_policy=retry_policy)
    numbers = attempts_in(places, root)
    newest = _newest_settings(places, [*_newest_first(root, numbers), *(place for _, place in earlier)])
    if isinstance(identity, str):
        identity = {CHAIN: identity}
    elif identity is None:
        identity = newest.claim.identity if newest.claim else {CHAIN: PurePosixPath(root).name}
    before = earlier_attempts(root, reversed(numbers))
    if numbers:
        attempt = numbers[-1] + 1
        own, notes = attempt_place(root, attempt), []
    else:
        before = [Candidate(place, Origin.DERIVED, number) for number, place in earlier]
        if attempt is None and newest.claim is not None:
            attempt = newest.claim.attempt
        own, notes = root, [newest.fence] if newest.fence else []
    chain = Chain(
        places,
        own,
        identity=identity,
        attempt=attempt,
        candidates=[*before, *named_places(places, sources)],
        rules=newest.rules,
        notes=notes,
        is_looking_only=True,
        since=CostSnapshot(),
    )
    report = chain.explain()
    if not numbers and not earlier and newest.claim is None and _found_nothing_of_ours(report):
        return explain_checkpointer(root) or report
    return report


def recorded(uri: str | os.PathLike[str], *, retry_policy: RetryPolicy = RETRY_POLICY) -> ResumeReport:
    """Return the newest report that an attempt recorded, below a root or in the place of one attempt.

    Raises CheckpointMissing if there is none.
    """
    root, places = _root(uri), AttemptPlaces(retry_policy=retry_policy)
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


def _found_nothing_of_ours(report: ResumeReport) -> bool:
    """Whether no archive of a chain was found: nothing at all, or files that look like Flyte's own."""
    return report.outcome == "fresh" or (report.choice is not None and report.choice.generation is None)


@dataclass(frozen=True, slots=True)
class _NewestSettings:
    """Claim and settings of the newest attempt of a chain, as far as they can be read."""

    claim: Claim | None
    rules: ResumeRules
    fence: str = ""  # a note on the fence of its place, if it has one


def _root(uri: str | os.PathLike[str]) -> str:
    """Return the place; the folder of its records stands for it as well."""
    return normalise(normalise(uri).removesuffix(FOLDER))


def _newest_first(root: str, numbers: Sequence[int]) -> list[str]:
    return [attempt_place(root, number) for number in reversed(numbers)] or [root]


def _newest_settings(places: AttemptPlaces, uris: Sequence[str]) -> _NewestSettings:
    """Read claim and settings from the first of these places that has them."""
    rules: ResumeRules | None = None
    for place in map(places.open, uris):
        rules = rules or _rules(place)
        try:
            attempt = Attempt.inspect(place)
        except CheckpointError:
            continue  # the walk will report the error
        if (claim := _newest_claim(attempt)) is not None:
            return _NewestSettings(claim, rules or ResumeRules(flyte_native=_form(place)), _fence(attempt))
    return _NewestSettings(None, rules or ResumeRules(flyte_native=_form(places.open(uris[0]))))


def _newest_claim(attempt: Attempt) -> Claim | None:
    for number in reversed(attempt.log.claims):
        with suppress(CheckpointError):
            claim = attempt.claim(number)
            if claim is not None and claim.kind == "claim":
                return claim
    return None


def _fence(attempt: Attempt) -> str:
    """Return a note if a later attempt fenced the place."""
    with suppress(CheckpointError):
        last = attempt.claim(attempt.log.last)
        if last is not None and last.kind == "fence":
            return f"{attempt.place.uri} was fenced by {last.by}, where the chain continues"
    return ""


def _rules(place: AttemptPlace) -> ResumeRules | None:
    """Read the settings of an attempt from its report."""
    try:
        return ResumeRules.from_json(_record(place).settings)
    except CheckpointError:
        return None


def _form(place: AttemptPlace) -> FlyteNativeForm | None:
    """Return the form of Flyte's native files there, if there are any."""
    forms: tuple[FlyteNativeForm, ...] = ("tree", "object")
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
