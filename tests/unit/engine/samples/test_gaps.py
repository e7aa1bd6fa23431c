from __future__ import annotations

import asyncio
import logging

import pytest

from chockstone.backends.protocol import SampledWeights
from chockstone.catalog import Catalog, CatalogUnavailable
from chockstone.engine.config import Busy
from chockstone.engine.samples.gaps import SamplerGaps
from chockstone.engine.samples.requests import SamplerSource
from chockstone.telemetry.instruments import Instruments
from chockstone.wire.failures import BadRequest
from support.engine.gap_meter import SERVER, ScriptedGapMeter, measured, unmeasured
from support.engine.making import NOW
from support.exposition import series_of

SOURCE = SamplerSource("s:sample:0", "ann", "tiny:peft:64", "weights/a", "seal")


def gaps_of(catalog: Catalog, meter: ScriptedGapMeter | None, instruments: Instruments | None = None) -> SamplerGaps:
    gaps = SamplerGaps(catalog, meter, instruments or Instruments(), now=lambda: NOW)
    if meter is not None:
        meter.report = gaps.record
    return gaps


async def test_a_check_measures_the_weights_and_records_what_it_finds(catalog: Catalog) -> None:
    meter, instruments = ScriptedGapMeter(measured(0.002, 0.01), unmeasured("NaN", server="http://two")), Instruments()
    gaps = gaps_of(catalog, meter, instruments)

    found = await gaps.check(SOURCE)

    assert meter.asked == [SampledWeights(base_model="tiny", owner="ann", archive="weights/a", seal="seal")]
    assert [(gap.mean, gap.trouble) for gap in found] == [(0.002, None), (None, "NaN")]
    one, two = (await catalog.sampler_gaps.of_archives(["weights/a"]))["weights/a"]
    assert (one.server, one.mean, one.largest, one.tokens, one.measured_at) == (SERVER, 0.002, 0.01, 128, NOW)
    assert (two.server, two.mean, two.largest, two.trouble) == ("http://two", None, None, "NaN")
    series = series_of(instruments.render())
    assert series["chockstone_vllm_gap_nats_count"] == 1 and series["chockstone_vllm_gap_nats_sum"] == 0.002


async def test_the_gap_of_a_base_model_is_recorded_by_its_name(catalog: Catalog) -> None:
    await gaps_of(catalog, ScriptedGapMeter()).check(SamplerSource("", "ann", "tiny", None))

    [row] = (await catalog.sampler_gaps.of_base_models(["tiny"]))["tiny"]
    assert (row.server, row.mean) == (SERVER, 0.002)


def source(owner: str, archive: str | None) -> SamplerSource:
    return SamplerSource("", owner, "tiny", archive)


async def test_checks_of_the_same_weights_share_one_measurement(catalog: Catalog) -> None:
    meter = ScriptedGapMeter(measured(0.002))
    gaps = gaps_of(catalog, meter)
    meter.gate.clear()
    waiting = [asyncio.create_task(gaps.check(source(owner, "a"))) for owner in ("ann", "ann", "bob")]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    meter.gate.set()

    assert [[gap.mean for gap in await each] for each in waiting[1:]] == [[0.002]] * 2
    assert waiting[0].cancelled() and len(meter.asked) == 1
    await gaps.check(source("ann", "a"))
    assert len(meter.asked) == 2, "a later check measures again"


async def test_a_user_has_one_check_at_a_time_and_a_server_few(catalog: Catalog) -> None:
    meter = ScriptedGapMeter()
    gaps = gaps_of(catalog, meter)
    meter.gate.clear()
    waiting = [asyncio.create_task(gaps.check(source(owner, owner))) for owner in "abcd"]
    await asyncio.sleep(0)

    with pytest.raises(Busy, match="another sampler of yours"):
        await gaps.check(source("a", "other"))
    with pytest.raises(Busy, match="4 checks of samplers are running"):
        await gaps.check(source("e", "other"))

    waiting[0].cancel()
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="another sampler of yours"):  # it goes on without its client
        await gaps.check(source("a", "other"))
    meter.gate.set()
    await asyncio.gather(*waiting[1:])
    while gaps._checks:
        await asyncio.sleep(0.001)
    assert len(await gaps.check(source("a", "other"))) == 1


async def test_a_check_that_fails_leaves_room_for_the_next(catalog: Catalog, caplog: pytest.LogCaptureFixture) -> None:
    meter = ScriptedGapMeter()
    gaps = gaps_of(catalog, meter)
    meter.failure = BadRequest("LoRA adapters only")
    with caplog.at_level(logging.INFO, "chockstone"), pytest.raises(BadRequest, match="LoRA adapters only"):
        await gaps.check(source("ann", "a"))
    meter.failure = None

    assert len(await gaps.check(source("ann", "b"))) == 1
    assert "sampler check failed weights=a error=LoRA adapters only" in caplog.text


async def test_without_vllm_servers_there_is_no_gap(catalog: Catalog) -> None:
    gaps = gaps_of(catalog, None)

    with pytest.raises(BadRequest, match="there is no gap to measure.*--sampler vllm"):
        await gaps.check(SOURCE)
    await gaps.keep()
    assert (gaps.limit, gaps.exceeding) == (None, ())


async def test_a_catalog_that_does_not_answer_fails_no_sample(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(_: object) -> None:
        raise CatalogUnavailable("it is away")

    monkeypatch.setattr(catalog.sampler_gaps, "record", refuse)

    with caplog.at_level(logging.WARNING, "chockstone"):
        await gaps_of(catalog, ScriptedGapMeter()).record(measured())

    assert "sampler gap not recorded weights=tiny error=it is away" in caplog.text


async def test_records_of_other_servers_and_of_weights_that_are_gone_are_deleted_at_the_start(
    catalog: Catalog,
) -> None:
    await catalog.samplers.create("s", 0, owner="ann", base_model="tiny", archive="used", now=NOW)
    gaps = gaps_of(catalog, ScriptedGapMeter(measured(), measured(server="http://old")))
    for archive in ("used", "gone"):
        await gaps.check(SamplerSource("", "ann", "tiny", archive))

    async def left() -> dict[str, list[str]]:
        rows = await catalog.sampler_gaps.of_archives(["used", "gone"])
        return {archive: [row.server for row in found] for archive, found in rows.items()}

    assert await left() == {"used": [SERVER, "http://old"], "gone": [SERVER, "http://old"]}
    keeping = asyncio.create_task(gaps_of(catalog, ScriptedGapMeter()).keep())
    async with asyncio.timeout(10):
        while await left() != {"used": [SERVER]}:
            await asyncio.sleep(0.01)
    keeping.cancel()
