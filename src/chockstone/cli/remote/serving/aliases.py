"""Aliases of a server: lists, sets, undoes and removes them."""

from __future__ import annotations

from chockstone.cli.output.formatting import printable
from chockstone.cli.output.terminal import print_json, print_line, print_table
from chockstone.cli.remote.client import Json, Server, segment


def list_aliases(server: Server, *, as_json: bool) -> None:
    aliases = server.get("aliases")["aliases"]
    if as_json:
        print_json({"server": server.url, "aliases": aliases})
        return
    if not aliases:
        print_line("no aliases; set one with `chockstone alias set NAME TARGET`")
        return
    rows = [
        (
            *(printable(row["name"]), _scope(row), _target(row)),
            *("yes" if row.get("store") else "no", printable(row["changed_by"])),
        )
        for row in aliases
    ]
    print_table(("ALIAS", "FOR", "TARGET", "STORED", "SET BY"), rows)
    for row in aliases:
        if problem := row.get("problem"):
            print_line(f"{printable(row['name'])} cannot be used: {printable(problem)}")


def set_alias(server: Server, name: str, target: str, *, store: bool | None, server_wide: bool, as_json: bool) -> None:
    """``store`` None: as the alias has it."""
    stored = {} if store is None else {"store": store}
    answer = server.put(f"aliases/{segment(name)}", {"target": target, "server_wide": server_wide, **stored})
    _print_change(answer, as_json=as_json)


def undo_alias(server: Server, name: str, *, server_wide: bool, as_json: bool) -> None:
    answer = server.post(f"aliases/{segment(name)}/undo", {"server_wide": server_wide})
    _print_change(answer, as_json=as_json)


def remove_alias(server: Server, name: str, *, server_wide: bool, as_json: bool) -> None:
    answer = server.delete(f"aliases/{segment(name)}?server_wide={str(server_wide).lower()}")
    _print_change(answer, as_json=as_json)


def show_history(server: Server, name: str, *, server_wide: bool, as_json: bool) -> None:
    answer = server.get(f"aliases/{segment(name)}/history?server_wide={str(server_wide).lower()}")
    if as_json:
        print_json({"server": server.url, **answer})
        return
    rows = [
        (str(row["revision"]), row["action"], _target(row), str(row["changed_at"]), printable(row["changed_by"]))
        for row in answer["changes"]
    ]
    print_table(("REVISION", "CHANGE", "TARGET", "AT", "BY"), rows, right=("REVISION",))


def _print_change(answer: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    elif answer.get("target") is None:
        print_line(f"removed {printable(answer['name'])}; `chockstone alias undo` brings it back")
    else:
        print_line(f"{printable(answer['name'])} -> {_target(answer)}{_stored(answer)}")


def _target(row: Json) -> str:
    return printable(row.get("target") or "(removed)")


def _stored(row: Json) -> str:
    return ", conversations are stored" if row.get("store") else ""


def _scope(row: Json) -> str:
    return "all users" if row["server_wide"] else "you"
