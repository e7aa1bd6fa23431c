"""Shows, sets and previews the retention policies of a server, and sweeps by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chockstone.cli.output.formatting import (
    format_count,
    format_size,
    printable,
    write_best,
    write_duration,
    write_size,
)
from chockstone.cli.output.terminal import print_json, print_line, print_table, spinner
from chockstone.cli.remote.client import LONG_SECONDS, Json, Server, segment


def show_policies(server: Server, scope: str | None, *, as_json: bool) -> None:
    """All that the caller may see, or one scope's; the server's own rules come last."""
    answer = server.get("policies")
    policies = [row for row in answer["policies"] if scope in (None, row["scope"])]
    quotas = answer.get("default_quotas") or {}
    if as_json:
        print_json({"server": server.url, "policies": policies, "default": answer["default"], "default_quotas": quotas})
        return
    rows = [(printable(row["scope"]), _spell_row(row), printable(row["changed_by"])) for row in policies]
    rows.append(("(default)", _spell_default(answer["default"], quotas), "serve options"))
    print_table(("SCOPE", "POLICY", "SET BY"), rows)


def set_policy(server: Server, scope: str, policy: Mapping[str, Any], *, as_json: bool) -> None:
    """Look at what it will remove, and set it."""
    report = _preview(server, scope, policy)
    scope = server.put(f"policies/{segment(scope)}", policy)["scope"]
    if as_json:
        print_json({"scope": scope, "policy": dict(policy), "next_sweep": report})
        return
    print_line(f"{scope}: {spell(policy)}")
    print_line(_foretell(report))


def remove_policy(server: Server, scope: str, *, as_json: bool) -> None:
    report = _preview(server, scope, None)
    server.delete(f"policies/{segment(scope)}")
    if as_json:
        print_json({"scope": scope, "removed": True, "next_sweep": report})
        return
    print_line(f"{scope}: policy removed; the next wider scope applies")
    print_line(_foretell(report))


def preview_policy(server: Server, scope: str, policy: Mapping[str, Any] | None, *, as_json: bool) -> None:
    """Print what the next sweep would remove if the scope had this policy, or none. Sets nothing."""
    report = _preview(server, scope, policy)
    if as_json:
        print_json({"server": server.url, "scope": scope, "policy": policy and dict(policy), **report})
        return
    print_report(report)
    print_line("dry run: no policy was changed")


def _preview(server: Server, scope: str, policy: Mapping[str, Any] | None) -> Json:
    method = "DELETE" if policy is None else "PUT"
    with spinner(f"{printable(server.url)} computes the next sweep"):
        return server.ask(method, f"policies/{segment(scope)}?dry_run=true", policy, seconds=LONG_SECONDS)


def _foretell(report: Json) -> str:
    removed = report["removed"]
    if not removed:
        return "the next sweep removes no checkpoint of this scope"
    size = format_size(sum(gone["size_bytes"] for gone in removed))
    return (
        f"the next sweep removes {format_count(len(removed), 'checkpoint')}, {size}; "
        f"`chockstone checkpoints gc --dry-run` lists them"
    )


def _spell_row(row: Json) -> str:
    ceiling: int | None = row.get("quota_ceiling_bytes")
    return spell(row["policy"]) + ("" if ceiling is None else f" (limit set by an admin: {write_size(ceiling)})")


def _spell_default(policy: Json, quotas: Json) -> str:
    """As the options of ``serve``."""
    rules = {name: rule for name, rule in policy.items() if name != "quota_bytes"}
    limits = [(f"--{who}-quota", quotas.get(f"{who}_bytes")) for who in ("user", "run")]
    spelled = [f"{option} {write_size(limit)}" for option, limit in limits if limit is not None]
    return " ".join([spell(rules, ttl="--checkpoint-ttl") + ("" if rules or not spelled else ";"), *spelled])


def spell(policy: Mapping[str, Any], *, ttl: str = "--ttl") -> str:  # Any: plain JSON
    """As the options that would set it."""
    words = [f"--{name.replace('_', '-')} {policy[name]}" for name in ("keep_last", "keep_every") if policy.get(name)]
    best: Json | None = policy.get("keep_best")
    if best:
        words.append(f"--keep-best {write_best(best['metric'], best.get('mode', 'min'), best.get('count', 1))}")
    if policy.get("ttl_seconds"):
        words.append(f"{ttl} {write_duration(policy['ttl_seconds'])}")
    words += [f"--pin {name}" for name in policy.get("pinned") or ()]
    if policy.get("quota_bytes") is not None:
        words.append(f"--quota {write_size(policy['quota_bytes'])}")
    return printable(" ".join(words)) or "keep everything"


def sweep_served(server: Server, run_id: str | None, *, dry_run: bool, as_json: bool) -> None:
    body = {"dry_run": dry_run} if run_id is None else {"dry_run": dry_run, "run_id": run_id}
    with spinner(f"{printable(server.url)} sweeps"):
        report = server.post("sweep", body, seconds=LONG_SECONDS)
    if as_json:
        print_json({"server": server.url, **report})
        return
    print_report(report)


def print_report(report: Json) -> None:
    """What was done, or in a dry run would be, with each checkpoint."""
    dry_run = report["dry_run"]
    verb = "would remove" if dry_run else "removed"
    rows = [("kept", kept["tinker_path"], "", printable("; ".join(kept["reasons"]))) for kept in report["kept"]]
    rows += [
        (verb, gone["tinker_path"], format_size(gone["size_bytes"]), printable(gone["reason"]))
        for gone in report["removed"]
    ]
    if rows:
        print_table(("ACTION", "PATH", "SIZE", "REASON"), rows, right=("SIZE",))
    count = format_count(len(report["removed"]), "checkpoint")
    total, freed = sum(gone["size_bytes"] for gone in report["removed"]), report["freed_bytes"]
    later = "" if dry_run or freed >= total else f" ({format_size(freed)} freed now, the rest when the trash is purged)"
    print_line(f"{verb} {count}, {format_size(total)}{later}; kept {len(report['kept']):,}")
