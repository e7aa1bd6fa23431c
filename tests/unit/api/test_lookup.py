from __future__ import annotations

from datetime import timedelta

from chockstone.api.context import Context
from support.api.users import User, refusal, url_of


async def test_what_is_anothers_and_what_is_not_there_sound_the_same(context: Context, ann: User, bob: User) -> None:
    run_id = await ann.run()
    await ann.save(run_id, "private")
    await ann.save(run_id, "expired", ttl_seconds=3600)
    await context.catalog.checkpoints.set_expiry(
        run_id, "weights", "expired", context.now() - timedelta(hours=1), now=context.now()
    )
    nobodys = "0" * len(run_id)

    async def heard(run: str, name: str) -> list[str]:
        path = f"tinker://{run}/weights/{name}"
        answers = [
            await bob.http.get(url_of(path)),
            await bob.http.delete(url_of(path)),
            await bob.http.delete(f"training_runs/{run}/checkpoints/{name}"),
            await bob.http.post(url_of(path, "publish")),
            await bob.http.delete(url_of(path, "publish")),
            await bob.http.put(url_of(path, "ttl"), json={"ttl_seconds": None}),
            await bob.http.post(url_of(path, "verify")),
            await bob.http.get(url_of(path, "archive")),
            await bob.http.get(f"training_runs/{run}/checkpoints"),
            await bob.http.get(f"training_runs/{run}?access_scope=accessible"),
            await bob.http.post("weights_info", json={"tinker_path": path}),
            await bob.http.post("copy_weights", json={"source_path": path, "destination_project_id": "p"}),
            await bob.http.post("sweep", json={"run_id": run}),
            await bob.http.put(f"policies/run:{run}", json={}),
        ]
        return [refusal(answer, 404).replace(run, "RUN").replace(name, "NAME") for answer in answers]

    unknown = await heard(nobodys, "private")
    for name in ("private", "expired", "latest", "never-there"):
        assert await heard(run_id, name) == unknown, name
