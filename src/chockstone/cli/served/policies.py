"""Policies: what a server keeps of a run, of a user's runs, or of everyone's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chockstone.cli.client import Json, Server, segment
from chockstone.cli.terminal import print_json, print_line, print_table
from chockstone.cli.words import printable, write_best, write_duration, write_size


def show_policies(server: Server, scope: str | None, *, as_json: bool) -> None:
    """All that the caller may see, or one scope's; the server's own rules come last."""
    answer = server.get("policies")
    policies = [row for row in answer["policies"] if scope in (None, row["scope"])]
    if as_json:
        print_json({"server": server.url, "policies": policies, "default": answer["default"]})
        return
    rows = [(printable(row["scope"]), spell(row["policy"]), printable(row["changed_by"])) for row in policies]
    rows.append(("(default)", spell(answer["default"]), "as the server was started"))
    print_table(("SCOPE", "POLICY", "SET BY"), rows)


def set_policy(server: Server, scope: str, policy: Mapping[str, Any], *, as_json: bool) -> None:
    server.put(f"policies/{segment(scope)}", policy)
    if as_json:
        print_json({"scope": scope, "policy": dict(policy)})
        return
    print_line(f"{scope}: {spell(policy)}")
    print_line("`chockstone checkpoints gc --dry-run` shows what the next sweep would remove")


def remove_policy(server: Server, scope: str, *, as_json: bool) -> None:
    server.delete(f"policies/{segment(scope)}")
    if as_json:
        print_json({"scope": scope, "removed": True})
    else:
        print_line(f"{scope}: its policy is removed; a wider one applies")


def spell(policy: Mapping[str, Any]) -> str:  # Any: plain JSON
    """As the options that would set it."""
    words = [f"--{name.replace('_', '-')} {policy[name]}" for name in ("keep_last", "keep_every") if policy.get(name)]
    best: Json | None = policy.get("keep_best")
    if best:
        words.append(f"--keep-best {write_best(best['metric'], best.get('mode', 'min'), best.get('count', 1))}")
    if policy.get("ttl_seconds"):
        words.append(f"--ttl {write_duration(policy['ttl_seconds'])}")
    words += [f"--pin {name}" for name in policy.get("pinned") or ()]
    if policy.get("quota_bytes") is not None:
        words.append(f"--quota {write_size(policy['quota_bytes'])}")
    return printable(" ".join(words)) or "keep everything"
