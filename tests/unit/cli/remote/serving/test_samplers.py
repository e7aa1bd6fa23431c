from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.api.users import MODEL
from support.cli.loopback import Loopback, serve_on_loopback
from support.cli.remote_commands import fill
from support.engine.gap_meter import ScriptedGapMeter, measured, unmeasured


@pytest.fixture
def meter() -> ScriptedGapMeter:
    return ScriptedGapMeter(measured(0.0021, 0.0133))


@pytest.fixture
def served(tmp_path: Path, meter: ScriptedGapMeter) -> Iterator[Loopback]:
    with serve_on_loopback(tmp_path / "home", gap_meter=meter) as loopback:
        yield loopback


async def open_samplers(loopback: Loopback, *sources: dict[str, str]) -> list[str]:
    session, made = await loopback.served.session(), []
    for number, source in enumerate(sources):
        body = {"session_id": session, "sampling_session_seq_id": number, **source}
        answer = await loopback.served.http.post("create_sampling_session", json=body)
        made.append(str(answer.json()["sampling_session_id"]))
    return made


def test_a_check_prints_both_numbers_the_limit_and_the_verdict(served: Loopback, meter: ScriptedGapMeter) -> None:
    _, [path] = fill(served, "a", kind="sampler_weights")

    good = served.run("samplers", "check", path)
    document = served.json("samplers", "check", path)
    meter.found = [measured(0.31), measured(0.01, server="http://gpu-2:8001")]
    mixed = served.run("samplers", "check", path)
    meter.found = [measured(0.31), unmeasured("values that are no log-probabilities", server="http://gpu-2:8001")]
    bad = served.run("samplers", "check", path)
    listed = served.run("checkpoints", "ls").stdout

    assert good.stdout.split("\n")[:2] == [
        "VLLM SERVER          MEAN  LARGEST  TOKENS  LIMIT  VERDICT",
        "http://gpu-1:8001  0.0021    0.013     128    0.1  within the limit",
    ]
    assert "vLLM samples from these weights" in good.stdout and good.exit_code == 0
    assert (document["sampler"], document["gaps"][0]["mean"], document["gap_limit"]) == (path, 0.0021, 0.1)
    assert mixed.exit_code == bad.exit_code == 1
    assert "0.1  above the limit" in mixed.stdout and "vLLM samples from these weights" in mixed.stdout
    assert "not measured: values that are no log-probabilities" in bad.stdout
    assert "the worker samples from these weights" in bad.stdout
    assert "ok, vLLM gap 0.31" in listed


@pytest.mark.parametrize(
    ("gap", "limit", "words", "code"),
    [
        (measured(0.31), None, ("off  no limit", "vLLM samples from"), 0),
        (unmeasured("NaN"), None, ("not measured: NaN", "vLLM samples from"), 1),
        (
            unmeasured("it is away", was_asked=False),
            0.1,
            ("not measured: it is away", "samples from these weights wait or fail"),
            1,
        ),
    ],
)
def test_what_is_not_measured_is_a_finding_also_without_a_limit(
    served: Loopback, meter: ScriptedGapMeter, gap: object, limit: float | None, words: tuple[str, ...], code: int
) -> None:
    meter.found, meter.gap_limit = [gap], limit  # type: ignore[list-item]  # the parameters are gaps
    [sampler] = served.wait(open_samplers(served, {"base_model": MODEL}))

    result = served.run("samplers", "check", sampler)

    assert all(each in result.stdout for each in words), result.stdout
    assert result.exit_code == code
    assert served.run("samplers", "check", sampler, "--json").exit_code == code


def test_sampling_sessions_are_listed_with_their_gaps(served: Loopback, meter: ScriptedGapMeter) -> None:
    assert served.run("samplers", "ls").stdout == "no sampling sessions\n"
    _, [path] = fill(served, "a", kind="sampler_weights")
    by_path, by_model = served.wait(open_samplers(served, {"model_path": path}, {"base_model": MODEL}))
    before = served.run("samplers", "ls").stdout.splitlines()
    meter.found = [measured(0.31), unmeasured("NaN", server="http://gpu-2:8001")]
    served.run("samplers", "check", by_path)

    lines = served.run("samplers", "ls").stdout.splitlines()
    document = served.json("samplers", "ls", "--last", "1")

    assert lines[0].split() == ["SAMPLING", "SESSION", "WEIGHTS", "REQUESTS", "TOKENS", "GAP"]
    assert [line.split()[:2] for line in lines[1:]] == [[by_model, MODEL], [by_path, path]]
    assert [line.split()[4:] for line in before[1:]] == [["-"], ["-"]]
    assert lines[1].endswith("  -") and lines[2].endswith("0.31, above the limit, not measured")
    assert [each["sampling_session_id"] for each in document["samplers"]] == [by_model]
    assert "the newest 1 are listed" in served.run("samplers", "ls", "--last", "1").stdout


def test_a_server_that_samples_itself_has_nothing_to_check(asked: Loopback) -> None:
    [sampler] = asked.wait(open_samplers(asked, {"base_model": MODEL}))

    refused = asked.run("samplers", "check", sampler)

    assert refused.exit_code == 2 and "there is no gap to measure" in refused.stderr
    assert asked.run("samplers", "check", "tinker://r/sampler_weights/a").exit_code == 1
