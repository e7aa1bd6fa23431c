"""Read identity, number and earlier places of an attempt from the two paths and the environment. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.integrations.flyte.layouts import Derivation, execution_name, node_id, recognise

_ATTEMPT = "FLYTE_ATTEMPT_NUMBER"


@dataclass(frozen=True, slots=True)
class FlyteAttempt:
    """What Flyte tells an attempt about itself."""

    identity: dict[str, str]
    attempt: int | None  # as the path counts; None if it has no number
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...]  # for the report


def read_attempt(dest: str, prev: str | None, environ: Mapping[str, str]) -> FlyteAttempt:
    derived = recognise(dest, prev, environ)
    if not isinstance(derived, Derivation):
        candidates = [_previous(prev, None, may_be_foreign=environ.get(_ATTEMPT, "0") == "0")] if prev else []
        note = f"no older attempts are derived from {dest!r}: {derived.why}"
        return FlyteAttempt(identity(environ), None, tuple(candidates), (note,))
    older = list(derived.older())
    numbers = {place: attempt for attempt, place in older}
    is_first = derived.attempt == derived.first  # then ``prev`` is of another execution, which this one recovers
    platform = [_previous(prev, numbers.get(prev.rstrip("/")), may_be_foreign=is_first)] if prev else []
    candidates = [*platform, *(Candidate(place, Origin.DERIVED, attempt) for attempt, place in older)]
    return FlyteAttempt(identity(environ), derived.attempt, tuple(candidates), _attempt_note(derived, environ))


def identity(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what is the same in all attempts of a task and differs between tasks.

    Paths are not identities: two projects may share one, and hashed ids may collide. A value that changed from one
    attempt to the next would break the chain, so the node is left out if its URL does not have the known form.
    """
    found = {
        "project": environ.get("FLYTE_INTERNAL_EXECUTION_PROJECT") or environ.get("_F_PRJ"),
        "domain": environ.get("FLYTE_INTERNAL_EXECUTION_DOMAIN") or environ.get("_F_DM"),
        "execution": execution_name(environ),
        "task": environ.get("FLYTE_INTERNAL_TASK_NAME") or environ.get("_F_TK_NM"),
        "node": _node(environ),
    }
    return {name: value for name, value in found.items() if value}


def _node(environ: Mapping[str, str]) -> str | None:
    node, attempt = node_id(environ), environ.get(_ATTEMPT)
    is_known_form = f"/nodeId/{node}-{attempt}/" in f"{environ.get('FLYTE_EXECUTION_URL', '')}/"
    return node if is_known_form else None


def _previous(prev: str, attempt: int | None, *, may_be_foreign: bool) -> Candidate:
    return Candidate(prev, Origin.PLATFORM, attempt, may_be_foreign=may_be_foreign)


def _attempt_note(derived: Derivation, environ: Mapping[str, str]) -> tuple[str, ...]:
    said = environ.get(_ATTEMPT, "")
    counted = derived.attempt - derived.first
    if not said.isdecimal() or int(said) == counted:
        return ()
    return (f"the path says attempt {derived.attempt} of {derived.layout}, and {_ATTEMPT}={said}: the path counts",)
