from __future__ import annotations

from support.api.users import User
from support.served import Served


async def test_every_path_but_that_of_the_metrics_is_below_one_prefix(served: Served) -> None:
    paths = served.app.openapi()["paths"]

    assert [path for path in paths if not path.startswith("/api/v1/")] == ["/metrics"]


async def test_one_slash_more_is_another_path(ann: User) -> None:
    assert (await ann.http.get("training_runs")).status_code == 200
    assert (await ann.http.get("training_runs/", follow_redirects=False)).status_code == 404


async def test_nulls_are_left_out_of_answers(ann: User) -> None:
    session_id = await ann.session()

    answer = (await ann.http.get(f"sessions/{session_id}")).json()

    assert answer["sampler_ids"] == []
    assert None not in answer.values()
