"""Samplers of a server: lists them (``ls``), and measures how exact vLLM is for one (``check``)."""

from __future__ import annotations

from typing import Final

from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.formatting import printable
from chockstone.cli.output.terminal import print_alarm, print_json, print_line, print_table, spinner
from chockstone.cli.remote.client import Json, Server

_CHECK_SECONDS: Final = 900.0  # the server gives up earlier
_NONE: Final = "-"


def list_samplers(server: Server, *, last: int, as_json: bool) -> None:
    answer = server.get("samplers", {"limit": last})
    if as_json:
        print_json({"server": server.url, **answer})
        return
    listed = answer["samplers"]
    if not listed:
        print_line("no sampling sessions")
        return
    rows = [
        (
            printable(each["sampling_session_id"]),
            printable(_weights(each)),
            f"{each['requests']:,}",
            f"{each['tokens']:,}",
            _worst(each["gaps"]),
        )
        for each in listed
    ]
    alarming = {index for index, each in enumerate(listed) if any(map(_is_refused, each["gaps"]))}
    right = ("REQUESTS", "TOKENS")
    print_table(("SAMPLING SESSION", "WEIGHTS", "REQUESTS", "TOKENS", "GAP"), rows, right=right, alarming=alarming)
    if answer.get("cursor"):
        print_line(f"the newest {len(listed):,} are listed; --last lists more")


def check_sampler(server: Server, sampler: str, *, as_json: bool) -> int:
    """Print what the probe found, and return the exit code."""
    with spinner(f"measuring on {printable(server.url)}"):
        answer = server.post("samplers/check", {"sampler": sampler}, seconds=_CHECK_SECONDS)
    gaps, limit = answer["gaps"], answer.get("gap_limit")
    is_well = bool(gaps) and not any(map(_is_refused, gaps))
    if as_json:
        print_json({"sampler": sampler, **answer})
        return ExitCode.OK if is_well else ExitCode.FAILED
    rows = [
        (
            printable(gap["server"]),
            _number(gap.get("mean")),
            _number(gap.get("largest")),
            f"{gap['tokens']:,}",
            "off" if limit is None else f"{limit:g}",
            _verdict(gap),
        )
        for gap in gaps
    ]
    alarming = {index for index, gap in enumerate(gaps) if _is_refused(gap)}
    headers = ("VLLM SERVER", "MEAN", "LARGEST", "TOKENS", "LIMIT", "VERDICT")
    print_table(headers, rows, right=headers[1:5], alarming=alarming)
    _print_who_samples(answer)
    return ExitCode.OK if is_well else ExitCode.FAILED


def _print_who_samples(answer: Json) -> None:
    match answer.get("served_by"):
        case "vllm":
            print_line("vLLM samples from these weights")
        case "worker":
            print_alarm("the worker samples from these weights, on the exact path: no vLLM server is within the limit")
        case _:
            print_alarm("samples from these weights wait or fail: no vLLM server could be asked")


def _weights(row: Json) -> str:
    name = "weights without a name" if row["is_anonymous"] else str(row["base_model"])
    return str(row.get("tinker_path") or name)


def _worst(gaps: list[Json]) -> str:
    means = [gap["mean"] for gap in gaps if gap.get("mean") is not None]
    words = [_number(max(means))] if means else []
    if any(_is_refused(gap) and gap.get("mean") is not None for gap in gaps):
        words.append("above the limit")
    if any(gap.get("mean") is None for gap in gaps):
        words.append("not measured")
    return ", ".join(words) or _NONE


def _verdict(gap: Json) -> str:
    if gap.get("mean") is None:
        return f"not measured: {printable(str(gap.get('trouble')))}"
    match gap.get("is_within_limit"):
        case True:
            return "within the limit"
        case False:
            return "above the limit"
        case _:
            return "no limit"


def _is_refused(gap: Json) -> bool:
    """Whether the gap is above the limit, or could not be measured."""
    return gap.get("mean") is None or gap.get("is_within_limit") is False


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2g}"
