from __future__ import annotations

import pytest

from chockstone.api.tinker.checkpoints import kinds_known_to
from support.api.users import User


@pytest.mark.parametrize("version", ["0.25.0", "0.27.9", "0.27", "0.0.1"])
def test_older_sdks_know_no_external_checkpoints(version: str) -> None:
    assert kinds_known_to(version) == ("weights", "sampler_weights")


@pytest.mark.parametrize("version", [None, "", "0.28.0", "0.36.0", "1.0", "x", "0", "0.2x", "9" * 50 + ".1", "-1.2"])
def test_newer_and_unknown_clients_are_shown_everything(version: str | None) -> None:
    assert kinds_known_to(version) is None


async def test_lists_for_an_older_sdk_leave_out_what_it_cannot_parse(ann: User) -> None:
    run_id = await ann.run()
    await ann.save(run_id, "first")
    await ann.save(run_id, "out", kind="external_weights")
    await ann.save(run_id, "last")

    async def listed(version: str) -> tuple[list[str], list[str], int]:
        headers = {"X-Stainless-Package-Version": version}
        of_run = (await ann.http.get(f"training_runs/{run_id}/checkpoints", headers=headers)).json()
        page = (await ann.http.get("checkpoints", params={"limit": 2}, headers=headers)).json()
        types = [[each["checkpoint_type"] for each in answer["checkpoints"]] for answer in (of_run, page)]
        return types[0], types[1], page["cursor"]["total_count"]

    assert await listed("0.25.0") == (["training", "training"], ["training", "training"], 2)
    assert await listed("0.36.0") == (["training", "external", "training"], ["training", "external"], 3)
