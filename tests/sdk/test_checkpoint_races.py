"""Races around one checkpoint: somebody wins, nobody gets a 5xx, and no bytes are torn."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import tinker

from sdk.checkpoints import archive_of, archives, listed, signed_url, url_of
from sdk.making import batch, create, step
from support.live import LiveServer

Connect = Callable[..., tinker.ServiceClient]


def test_of_many_deletes_one_wins(live: LiveServer, service: tinker.ServiceClient) -> None:
    path = create(service).save_state("wanted").result().path
    with live.http() as http, ThreadPoolExecutor(32) as pool:
        codes = sorted(answer.status_code for answer in pool.map(lambda _: http.delete(url_of(path)), range(32)))

    assert codes == [204] + [404] * 31


def test_deleting_many_at_once(live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient) -> None:
    run = create(service)
    paths = [saving.result().path for saving in [run.save_state(f"s{number}") for number in range(40)]]

    with live.http() as http, ThreadPoolExecutor(32) as pool:
        codes = {answer.status_code for answer in pool.map(lambda path: http.delete(url_of(path)), paths)}

    assert codes == {204}
    assert listed(rest, run.model_id) == archives(live, run.model_id) == set()


def test_a_delete_beside_loads(live: LiveServer, connect: Connect) -> None:
    """Each load gets the whole state or hears that it is gone."""
    service = connect(live)
    run = create(service)
    step(run, batch(0))
    for round_number in range(4):
        path = run.save_state(f"raced-{round_number}").result().path
        with live.http() as http, ThreadPoolExecutor(4) as pool:
            loads = [pool.submit(_load, service, path) for _ in range(3)]
            deleted = pool.submit(http.delete, url_of(path)).result()
            outcomes = [load.result() for load in loads]
        assert deleted.status_code == 204
        assert set(outcomes) <= {"loaded", "gone"}


def _load(service: tinker.ServiceClient, path: str) -> str:
    try:
        service.create_training_client_from_state_with_optimizer(path)
    except tinker.NotFoundError:
        return "gone"
    except tinker.RequestFailedError as error:
        return "gone" if error.category == tinker.types.RequestErrorCategory.User else str(error)
    return "loaded"


def test_a_delete_beside_saves_of_the_same_name(
    live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    run = create(service)
    with live.http() as http, ThreadPoolExecutor(2) as pool:
        for number in range(8):
            saving = run.save_state("same", overwrite=True)
            deleting = pool.submit(http.delete, url_of(f"tinker://{run.model_id}/weights/same"))
            assert deleting.result().status_code in (204, 400, 404), (number, deleting.result().text)
            saving.result()

    assert listed(rest, run.model_id) == archives(live, run.model_id)


def test_overwrites_beside_downloads(live: LiveServer, service: tinker.ServiceClient) -> None:
    """What a download got is one archive that was there, whole."""
    run = create(service, rank=32)
    path = run.save_state("moving").result().path
    known = {hashlib.sha256(archive_of(live, path).read_bytes()).hexdigest()}
    with live.http() as http, httpx.Client(follow_redirects=True) as plain, ThreadPoolExecutor(4) as pool:
        for number in range(6):
            urls = [signed_url(http, path) for _ in range(3)]
            downloads = [pool.submit(_digest, plain, url) for url in urls]
            step(run, batch(number))
            run.save_state("moving", overwrite=True).result()
            known.add(hashlib.sha256(archive_of(live, path).read_bytes()).hexdigest())
            assert {download.result() for download in downloads} <= known | {"gone"}

    assert len(archives(live, run.model_id)) == 1


def _digest(client: httpx.Client, url: str) -> str:
    answer = client.get(url)
    if answer.status_code == 404:
        return "gone"
    assert answer.status_code == 200
    return hashlib.sha256(answer.content).hexdigest()


@pytest.mark.parametrize("verb", ["publish", "ttl"])
def test_changes_beside_a_delete(live: LiveServer, service: tinker.ServiceClient, verb: str) -> None:
    path = create(service).save_state("changing").result().path
    with live.http() as http, ThreadPoolExecutor(16) as pool:

        def change(number: int) -> int:
            if number == 8:
                return http.delete(url_of(path)).status_code
            if verb == "publish":
                return http.post(url_of(path, "publish")).status_code
            return http.put(url_of(path, "ttl"), json={"ttl_seconds": 3600}).status_code

        codes = list(pool.map(change, range(16)))

    assert codes[8] == 204
    assert all(code in (200, 204, 404) for code in codes), codes
