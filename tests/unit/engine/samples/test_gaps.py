from __future__ import annotations

import asyncio
import logging

import pytest

from chockstone.backends.protocol import SampledWeights
from chockstone.catalog import Catalog, CatalogUnavailable
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
