"""The life of a checkpoint through the SDK: saved, listed, shared, copied, expired, deleted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import tinker

from sdk.checkpoints import archive_of, archives, entry, listed, url_of
from sdk.making import batch, create, step, train
from support.live import LiveServer

Connect = Callable[..., tinker.ServiceClient]


def test_saved_listed_deleted_and_still_training(
    live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    run = create(service)
    step(run, batch(0))
    path = run.save_state("cycle").result().path

    assert archive_of(live, path).size == entry(rest, path).size_bytes
    assert listed(rest, run.model_id) == {"weights/cycle"}

    rest.delete_checkpoint_from_tinker_path(path).result()

    assert archives(live, run.model_id) == set()
    assert listed(rest, run.model_id) == set()
    with pytest.raises(tinker.NotFoundError):
        service.create_training_client_from_state(path)
    assert train(run, 2, start=1)  # the model is still loaded
    assert run.save_state("cycle").result().path == path  # and its name is free


def test_deleting_two_and_four_of_five(
    live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    run = create(service)
    for saving in [save(str(n)) for n in range(1, 6) for save in (run.save_state, run.save_weights_for_sampler)]:
        saving.result()

    for name in ("2", "4"):
        rest.delete_checkpoint(run.model_id, f"weights/{name}").result()
        rest.delete_checkpoint(run.model_id, f"sampler_weights/{name}").result()

    left = {f"{kind}/{name}" for kind in ("weights", "sampler_weights") for name in "135"}
    assert archives(live, run.model_id) == left
    assert listed(rest, run.model_id) == left


def test_every_kind_has_a_life_of_its_own(
    live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    run = create(service)
    paths = [
        save("same").result().path for save in (run.save_state, run.save_weights_for_sampler, run.save_weights_external)
    ]
    kinds = {"weights/same", "sampler_weights/same", "external_weights/same"}
    types = {checkpoint.checkpoint_type for checkpoint in rest.list_checkpoints(run.model_id).result().checkpoints}

    assert {path.removeprefix(f"tinker://{run.model_id}/") for path in paths} == kinds == listed(rest, run.model_id)
    assert types == {"training", "sampler", "external"}
    for path in paths:
        rest.delete_checkpoint_from_tinker_path(path).result()
        kinds.discard(path.removeprefix(f"tinker://{run.model_id}/"))
        assert listed(rest, run.model_id) == kinds == archives(live, run.model_id)


def test_a_bare_id_deletes_what_it_can_only_mean(
    live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    run = create(service)
    for name in ("only", "both"):
        run.save_state(name).result()
    run.save_weights_for_sampler("both").result()

    rest.delete_checkpoint(run.model_id, "only").result()
    with pytest.raises(tinker.BadRequestError) as ambiguous:
        rest.delete_checkpoint(run.model_id, "both").result()
    with pytest.raises(tinker.NotFoundError):
        rest.delete_checkpoint(run.model_id, "only").result()

    assert "weights/both" in str(ambiguous.value)
    assert "sampler_weights/both" in str(ambiguous.value)
    assert listed(rest, run.model_id) == {"weights/both", "sampler_weights/both"} == archives(live, run.model_id)


def test_the_list_of_a_user_has_pages(service: tinker.ServiceClient, rest: tinker.RestClient) -> None:
    run = create(service)
    paths = [run.save_state(f"page-{number}").result().path for number in range(5)]

    first = rest.list_user_checkpoints(limit=2, offset=0).result()
    second = rest.list_user_checkpoints(limit=2, offset=2).result()

    seen = [checkpoint.tinker_path for checkpoint in [*first.checkpoints, *second.checkpoints]]
    assert seen == paths[:0:-1]  # newest first
    assert first.cursor is not None
    assert (first.cursor.offset, first.cursor.limit) == (0, 2)
    assert first.cursor.total_count >= 5


def test_a_lifetime_is_set_and_taken_away(service: tinker.ServiceClient, rest: tinker.RestClient) -> None:
    path = create(service).save_state("ttl").result().path

    rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result()
    expires_at = entry(rest, path).expires_at
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()

    assert timedelta(minutes=118) < expires_at - datetime.now(UTC) <= timedelta(hours=2)
    assert entry(rest, path).expires_at is None
    for ttl_seconds in (0, 3599, 400_000_000):
        with pytest.raises(tinker.BadRequestError, match="3600"):
            rest.set_checkpoint_ttl_from_tinker_path(path, ttl_seconds).result()


def test_what_has_expired_is_gone(live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient) -> None:
    run = create(service)
    path = run.save_state("short", ttl_seconds=3600).result().path
    kept = run.save_state("kept").result().path
    live.sql(f"UPDATE checkpoints SET expires_at = created_at WHERE name = 'short' AND run_id = '{run.model_id}'")

    assert listed(rest, run.model_id) == {"weights/kept"}
    with pytest.raises(tinker.NotFoundError, match="expired"):
        service.create_training_client_from_state(path)
    with live.http() as http:
        swept = http.post("sweep", json={"dry_run": False, "run_id": run.model_id}).json()

    assert [removed["tinker_path"] for removed in swept["removed"]] == [path]
    assert archives(live, run.model_id) == {"weights/kept"}
    assert service.create_training_client_from_state(kept)


def test_latest_is_the_newest_that_verifies(
    live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    run = create(service)
    paths = []
    for number in range(3):
        step(run, batch(number))
        paths.append(run.save_state(f"s{number}").result().path)
    archive_of(live, paths[2]).flip()

    resumed = service.create_training_client_from_state_with_optimizer(f"tinker://{run.model_id}/weights/latest")
    with live.http() as http:
        info = http.post("weights_info", json={"tinker_path": f"tinker://{run.model_id}/weights/latest"}).json()

    expected = service.create_training_client_from_state_with_optimizer(paths[1])
    assert train(resumed, 1, start=9) == train(expected, 1, start=9)
    assert info["path"] == paths[1]
    assert "damaged" in entry(rest, paths[2]).user_metadata["chockstone.damage"] or info.get("skipped")
    with pytest.raises(tinker.BadRequestError, match="damaged"):
        service.create_training_client_from_state(paths[2])
    with pytest.raises(tinker.APIStatusError) as reserved:
        run.save_state("latest").result()
    assert reserved.value.status_code == 400


def test_a_damaged_checkpoint_is_listed_with_the_reason(
    live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    path = create(service).save_state("hurt").result().path
    archive_of(live, path).flip()

    with pytest.raises(tinker.TinkerError):
        service.create_training_client_from_state(path)

    assert entry(rest, path).user_metadata["chockstone.damage"]
    with live.http() as http:
        found = http.get(f"training_runs/{path.split('/')[2]}/checkpoints").json()["checkpoints"]
    assert found[0]["state"] == "damaged"
    assert found[0]["damage"]


def test_a_copy_shares_its_bytes_and_outlives_its_source(
    live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    run = create(service)
    train(run, 2)
    path = run.save_state("origin").result().path
    content = archive_of(live, path).store.stat(archive_of(live, path).name).content

    copied = rest.copy_weights(path, "project", ttl_seconds=7200).result()

    copy = archive_of(live, copied)
    assert copy.store.stat(copy.name).content == content  # None in a bucket, where each has its own
    assert copied.split("/")[2] != run.model_id
    assert entry(rest, copied).expires_at is not None
    assert entry(rest, path).expires_at is None
    rest.delete_checkpoint_from_tinker_path(path).result()
    resumed = service.create_training_client_from_state_with_optimizer(copied)
    assert train(resumed, 1, start=2) == train(run, 1, start=2)


def test_a_live_sampler_goes_on_when_its_checkpoint_is_deleted(
    live: LiveServer, connect: Connect, rest: tinker.RestClient
) -> None:
    service = connect(live)
    run = create(service)
    path = run.save_weights_for_sampler("sampled").result().path
    sampler = service.create_sampling_client(model_path=path)
    params = tinker.types.SamplingParams(max_tokens=4, temperature=0.0)
    prompt = tinker.types.ModelInput.from_ints([1, 2, 3])
    before = sampler.sample(prompt, 1, params).result().sequences[0].tokens

    rest.delete_checkpoint_from_tinker_path(path).result()

    assert listed(rest, run.model_id) == set()
    assert sampler.sample(prompt, 1, params).result().sequences[0].tokens == before
    with pytest.raises(tinker.NotFoundError):
        service.create_sampling_client(model_path=path).sample(prompt, 1, params).result()


def test_what_was_done_is_in_the_audit_and_in_the_bill(
    live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    run = create(service)
    step(run, batch(0))
    path = run.save_state("billed").result().path
    rest.publish_checkpoint_from_tinker_path(path).result()
    rest.unpublish_checkpoint_from_tinker_path(path).result()
    with live.http() as http:
        entries = http.get("audit", params={"event_type": "checkpoints"}).json()["entries"]
        storage = http.get("billing/usage/checkpoints/current").json()["data"]
        assert http.delete(url_of(path)).status_code == 204
        assert path in {each.get("tinker_path") for each in http.get("audit").json()["entries"]}

    events = [each["event"] for each in entries if each.get("tinker_path") == path]
    assert len(events) >= 3
    assert storage[0]["size_bytes"] >= 1000
    assert storage[0]["checkpoint_count"] >= 1
