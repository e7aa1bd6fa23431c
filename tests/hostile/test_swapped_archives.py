"""Archives that stand in each other's places: sound, of the same size, and not what was saved there."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
import tinker

from sdk.checkpoints import Stored, archive_of, signed_url, url_of
from sdk.making import batch, create, step
from support.live import LiveServer

PLACE = "another archive is in its place"


@pytest.fixture
def paths(live: LiveServer, connect: Callable[..., tinker.ServiceClient]) -> tuple[str, str, str]:
    """Two training states, and a sampler's weights: their archives are swapped with those of others of the run."""
    run = create(connect(live))
    step(run, batch(1))
    first = run.save_state("one").result().path
    sampler = run.save_weights_for_sampler("sampler-one").result().path
    step(run, batch(2))
    second = run.save_state("two").result().path
    other = run.save_weights_for_sampler("sampler-two").result().path
    for one, another in ((first, second), (sampler, other)):
        swap(archive_of(live, one), archive_of(live, another))
    return first, second, sampler


def swap(one: Stored, other: Stored) -> None:
    assert one.size == other.size, "sizes tell nothing"
    content = one.read_bytes()
    one.put(other.read_bytes())
    other.put(content)


def test_swapped_archives_are_neither_loaded_nor_sampled_nor_downloaded_nor_verified(
    live: LiveServer, connect: Callable[..., tinker.ServiceClient], http: httpx.Client, paths: tuple[str, str, str]
) -> None:
    first, second, sampler_path = paths
    service = connect(live)
    url = signed_url(http, first)

    with pytest.raises(tinker.RequestFailedError, match=PLACE) as refused:
        service.create_training_client_from_state_with_optimizer(first)
    assert first in str(refused.value)
    sampler = service.create_sampling_client(model_path=sampler_path)
    prompt = tinker.ModelInput.from_ints([1, 2, 3])
    with pytest.raises(tinker.RequestFailedError, match=PLACE):
        sampler.sample(prompt, 1, tinker.SamplingParams(max_tokens=2)).result()

    verified = http.post(url_of(second, "verify")).json()
    assert verified["state"] == "damaged" and PLACE in verified["damage"]
    answer = httpx.get(url, follow_redirects=True)
    assert answer.status_code == 400 and PLACE in answer.text

    swap(archive_of(live, first), archive_of(live, second))
    assert http.post(url_of(first, "verify")).json() == {"state": "ready"}
    assert http.post(url_of(second, "verify")).json() == {"state": "ready"}
    assert httpx.get(url, follow_redirects=True).status_code == 200
    service.create_training_client_from_state_with_optimizer(first)
