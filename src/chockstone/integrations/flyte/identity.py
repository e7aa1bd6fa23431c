"""What Flyte tells an attempt about itself: whose it is, its number, and where those before it were.

Only from the two paths and the environment; nothing is asked of a store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.integrations.flyte.layouts import Derivation, execution_name, node_id, recognise

_ATTEMPT = "FLYTE_ATTEMPT_NUMBER"


@dataclass(frozen=True, slots=True)
class Told:
    identity: dict[str, str]
    attempt: int | None  # as the path counts; None where it does not tell
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...]  # for the audit


def told(dest: str, prev: str | None, environ: Mapping[str, str]) -> Told:
    derived = recognise(dest, prev, environ)
    if not isinstance(derived, Derivation):
        candidates = [_previous(prev, None, may_be_foreign=environ.get(_ATTEMPT, "0") == "0")] if prev else []
        note = f"no older attempts are derived from {dest!r}: {derived.why}"
        return Told(identity(environ), None, tuple(candidates), (note,))
    older = list(derived.older())
    numbers = {place: attempt for attempt, place in older}
    is_first = derived.attempt == derived.first  # then the platform's is another execution's, which this one recovers
    platform = [_previous(prev, numbers.get(prev.rstrip("/")), may_be_foreign=is_first)] if prev else []
    candidates = [*platform, *(Candidate(place, Origin.DERIVED, attempt) for attempt, place in older)]
    return Told(identity(environ), derived.attempt, tuple(candidates), _audit(derived, environ))


def identity(environ: Mapping[str, str]) -> dict[str, str]:
    """What stays the same in all attempts of a task, and differs between tasks.

    Paths are no identities: two projects may share one, and ids that are hashes may coincide. Whatever is in here
    must never change from one attempt to the next, or a chain would not know itself; so the node is left out where
    its address is not of the one form that is known.
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


def _audit(derived: Derivation, environ: Mapping[str, str]) -> tuple[str, ...]:
    said = environ.get(_ATTEMPT, "")
    counted = derived.attempt - derived.first
    if not said.isdecimal() or int(said) == counted:
        return ()
    return (f"the path says attempt {derived.attempt} of {derived.layout}, and {_ATTEMPT}={said}: the path counts",)
