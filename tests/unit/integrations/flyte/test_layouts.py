"""Paths of older attempts are computed exactly, or not at all."""

from __future__ import annotations

import pytest

from chockstone.integrations.flyte.layouts import (
    LEAF,
    Derivation,
    Unrecognised,
    fnv1a32,
    node_id,
    recognise,
    shard,
    unique_id,
)

RAW = "s3://bucket/raw"


def flyte1(stem: str, attempt: int, *, raw: str = RAW, max_bytes: int = 50) -> str:
    uid = unique_id(f"{stem}-{attempt}", max_bytes=max_bytes)
    return f"{raw}/{shard(uid)}/{uid}/{LEAF}"


def hosted(run: str, action: str, attempt: int, *, base: str = "s3://bucket/org/project") -> str:
    uid = unique_id(f"{run}-{action}-{attempt - 1}")
    return f"{base}/{run}/{action}/{attempt}/{shard(uid)}/{uid}/{LEAF}"


def flyte2(attempt: int, *, namespace: str = "flyte", run: str = "r7", action: str = "a1") -> str:
    return f"s3://bucket/{shard(f'{namespace}/{run}-{action}')}/org/project/{run}/{action}/{attempt}/{LEAF}"


def environment(execution: str, node: str, attempt: int) -> dict[str, str]:
    page = f"https://flyte.example/console/projects/p/domains/d/executions/{execution}/nodeId/{node}-{attempt}/nodes"
    return {"FLYTE_INTERNAL_EXECUTION_ID": execution, "FLYTE_EXECUTION_URL": page}


def derived(dest: str, prev: str | None = None, environ: dict[str, str] | None = None) -> Derivation:
    found = recognise(dest, prev, environ or {})
    assert isinstance(found, Derivation), found
    return found


def refused(dest: str, prev: str | None = None, environ: dict[str, str] | None = None) -> str:
    found = recognise(dest, prev, environ or {})
    assert isinstance(found, Unrecognised), found
    return found.why


def test_fnv1a32_is_the_published_one() -> None:
    assert fnv1a32(b"") == 0x811C9DC5
    assert fnv1a32(b"foobar") == 0xBF9CF968


@pytest.mark.parametrize(
    ("joined", "max_bytes", "expected"),
    [("name-n1-0", 8, "fpqmhlei"), ("name-n1-1", 8, "fpmmhh6q"), ("x" * 24, 20, "fuaa3aji"), ("x" * 24, 24, "x" * 24)],
)
def test_long_ids_are_hashed_as_propeller_does(joined: str, max_bytes: int, expected: str) -> None:
    assert unique_id(joined, max_bytes=max_bytes) == expected


@pytest.mark.parametrize(
    ("uid", "expected"),
    [("feda4e266c748463a97d-n0-0", "o4"), ("r969nmh2r5m6mqqnnb4h-a0-0", "ge"), ("r969nmh2r5m6mqqnnb4h-a0-1", "5d")],
)
def test_shards_are_those_of_flyte(uid: str, expected: str) -> None:
    assert shard(uid) == expected


def test_F02_older_attempts_have_shards_of_their_own() -> None:
    paths = [flyte1("feda4e266c748463a97d-n0", attempt) for attempt in range(6)]

    derivation = derived(paths[5], paths[4])

    assert (derivation.layout, derivation.attempt, derivation.first) == ("flyte 1", 5, 0)
    assert list(derivation.older()) == list(zip(range(4, -1, -1), paths[4::-1], strict=True))
    assert len({path.split("/")[-3] for path in paths}) > 1


def test_F02_a_directory_is_as_good_as_a_bucket() -> None:
    paths = [flyte1("exec-n0", attempt, raw="/data/raw") for attempt in range(3)]

    assert [place for _, place in derived(paths[2] + "/", paths[1] + "/").older()] == paths[1::-1]


@pytest.mark.parametrize(
    "dest",
    [
        "s3://bucket/run/checkpoint",
        f"s3://bucket/{LEAF}",
        f"{RAW}/aa/feda4e266c748463a97d-n0-1/{LEAF}",  # not its shard
        f"{RAW}/{shard('noattempt')}/noattempt/{LEAF}",
        f"{RAW}/{shard('exec-n0-01')}/exec-n0-01/{LEAF}",  # never written so
        flyte1("exec-n0", 1) + "/more",
        flyte1("exec-n0", 1).replace(LEAF, LEAF + "2"),
        flyte1("x" * 60 + "-n0", 1, max_bytes=100),  # longer than a plain one can be
        "",
        "/",
        LEAF,
    ],
)
def test_F03_a_path_of_no_layout_says_why(dest: str) -> None:
    assert refused(dest)


def test_F03_a_previous_path_of_another_layout_refutes_the_derivation() -> None:
    why = refused(flyte1("exec-n0", 3), flyte1("other-n0", 2))

    assert "previous" in why


def test_F04_a_previous_path_that_is_the_current_one_says_nothing() -> None:
    dest = flyte1("exec-n0", 3)

    assert next(derived(dest, dest).older()) == (2, flyte1("exec-n0", 2))


def test_F05_no_previous_path_on_a_retry() -> None:
    assert next(derived(flyte1("exec-n0", 3)).older()) == (2, flyte1("exec-n0", 2))
    assert next(derived(hosted("run", "a0", 3)).older()) == (2, hosted("run", "a0", 2))
    assert next(derived(flyte2(3)).older()) == (2, flyte2(2))


def test_a_previous_path_of_any_older_attempt_confirms() -> None:
    assert derived(flyte1("exec-n0", 5), flyte1("exec-n0", 2)).attempt == 5


def test_at_the_first_attempt_the_previous_path_is_of_another_execution() -> None:
    derivation = derived(flyte1("exec-n0", 0), flyte1("recovered-n0", 4))

    assert (derivation.attempt, list(derivation.older())) == (0, [])


class TestF07LengthCliff:
    EXECUTION, NODE = "e" * 45, "n0"  # with "-9" 50 bytes, with "-10" 51
    STEM = f"{EXECUTION}-{NODE}"

    def test_F07_the_cliff_is_where_it_is_said_to_be(self) -> None:
        assert flyte1(self.STEM, 9).split("/")[-2] == f"{self.STEM}-9"
        assert len(flyte1(self.STEM, 10).split("/")[-2]) == 8

    @pytest.mark.parametrize("prev", [9, None])
    def test_F07_with_the_names_in_the_environment_it_is_exact(self, prev: int | None) -> None:
        given = None if prev is None else flyte1(self.STEM, prev)

        derivation = derived(flyte1(self.STEM, 10), given, environment(self.EXECUTION, self.NODE, 10))

        assert derivation.attempt == 10
        assert list(derivation.older()) == [(k, flyte1(self.STEM, k)) for k in range(9, -1, -1)]

    def test_F07_beyond_the_cliff_both_sides_are_exact(self) -> None:
        environ = {**environment(self.EXECUTION, self.NODE, 12), "FLYTE_ATTEMPT_NUMBER": "12"}

        derivation = derived(flyte1(self.STEM, 12), flyte1(self.STEM, 11), environ)

        assert [place for _, place in derivation.older()] == [flyte1(self.STEM, k) for k in range(11, -1, -1)]

    @pytest.mark.parametrize("missing", ["FLYTE_INTERNAL_EXECUTION_ID", "FLYTE_EXECUTION_URL"])
    def test_F07_without_them_there_is_no_path_rather_than_a_wrong_one(self, missing: str) -> None:
        environ = environment(self.EXECUTION, self.NODE, 10)
        del environ[missing]

        assert "hash" in refused(flyte1(self.STEM, 10), flyte1(self.STEM, 9), environ)

    def test_F07_names_of_another_task_do_not_match_the_hash(self) -> None:
        assert "hash" in refused(flyte1(self.STEM, 10), None, environment(self.EXECUTION, "n1", 10))

    def test_F07_before_the_cliff_nothing_is_needed(self) -> None:
        assert derived(flyte1(self.STEM, 9)).place(8) == flyte1(self.STEM, 8)

    def test_F07_a_wrong_attempt_in_the_environment_does_not_matter(self) -> None:
        environ = {**environment(self.EXECUTION, self.NODE, 10), "FLYTE_ATTEMPT_NUMBER": "3"}

        assert derived(flyte1(self.STEM, 10), None, environ).attempt == 10

    def test_F07_the_ray_plugin_has_its_cliff_three_bytes_earlier(self) -> None:
        paths = [flyte1(self.STEM, attempt, max_bytes=47) for attempt in range(10)]
        assert len(paths[9].split("/")[-2]) == 8

        derivation = derived(paths[9], paths[8], environment(self.EXECUTION, self.NODE, 9))

        assert [place for _, place in derivation.older()] == paths[8::-1]

    def test_F07_where_ray_is_about_and_nothing_tells_no_place_is_named(self) -> None:
        environ = {**environment(self.EXECUTION, self.NODE, 12), "RAY_CLUSTER_NAME": "raycluster"}

        derivation = derived(flyte1(self.STEM, 12), flyte1(self.STEM, 11), environ)

        assert [attempt for attempt, _ in derivation.older()] == [11, 10]  # below, 50 and 47 bytes differ

    def test_F07_a_hosted_path_carries_the_names_that_its_hash_needs(self) -> None:
        run = "r" * 46

        derivation = derived(hosted(run, "a0", 12), hosted(run, "a0", 11))

        assert [place for _, place in derivation.older()] == [hosted(run, "a0", k) for k in range(11, 0, -1)]


def test_F08_paths_of_flyte_2_count_from_one_whatever_the_environment_says() -> None:
    environ = {"FLYTE_ATTEMPT_NUMBER": "2", "ACTION_NAME": "a1"}

    derivation = derived(flyte2(3), flyte2(2), environ)

    assert (derivation.layout, derivation.attempt, derivation.first) == ("flyte 2", 3, 1)
    assert list(derivation.older()) == [(2, flyte2(2)), (1, flyte2(1))]
    assert derivation.place(0) is None


def test_F08_a_hosted_path_counts_from_one_and_its_id_from_zero() -> None:
    base = "s3://bucket/org/project"
    dest = f"{base}/r969nmh2r5m6mqqnnb4h/a0/2/5d/r969nmh2r5m6mqqnnb4h-a0-1/{LEAF}"
    older = f"{base}/r969nmh2r5m6mqqnnb4h/a0/1/ge/r969nmh2r5m6mqqnnb4h-a0-0/{LEAF}"

    derivation = derived(dest, older, {"FLYTE_ATTEMPT_NUMBER": "1"})

    assert (derivation.layout, derivation.attempt) == ("flyte 2 hosted", 2)
    assert list(derivation.older()) == [(1, older)]


def test_F08_without_any_witness_a_number_in_a_path_is_only_a_number() -> None:
    lonely = flyte2(3, namespace="team-a")

    assert "confirms" in refused(lonely)
    assert derived(lonely, None, {"ACTION_NAME": "a1", "FLYTE_ATTEMPT_NUMBER": "2"}).attempt == 3
    assert derived(lonely, flyte2(2, namespace="team-a")).attempt == 3
    assert derived(lonely, None, {"POD_NAMESPACE": "team-a"}).attempt == 3


def test_an_id_that_ends_like_a_hosted_one_below_another_prefix_is_flyte_1() -> None:
    raw = "s3://bucket/exec/n0/2"  # a raw prefix that looks like run, action and attempt

    derivation = derived(flyte1("exec-n0", 1, raw=raw), flyte1("exec-n0", 0, raw=raw))

    assert derivation.layout == "flyte 1"


def test_a_retried_parent_is_not_crossed() -> None:
    """A node inside a dynamic one has its parent's attempt in its name; that one starts a chain anew."""
    derivation = derived(flyte1("exec-n0-3-dn1", 2))

    assert [place for _, place in derivation.older()] == [flyte1("exec-n0-3-dn1", k) for k in (1, 0)]


def test_at_most_a_thousand_are_derived() -> None:
    places = list(derived(flyte1("exec-n0", 999_999)).older())

    assert len(places) == 1000
    assert places[0] == (999_998, flyte1("exec-n0", 999_998))


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("https://f/console/projects/p/domains/d/executions/e/nodeId/n0-0/nodes", "n0"),
        ("https://f/console/projects/p/domains/d/executions/e/nodeId/n0-0-dn1-12/nodes", "n0-0-dn1"),
        ("https://f/executions/e/nodeId/start", "start"),
        ("https://f/executions/e", None),
        ("", None),
    ],
)
def test_the_node_is_in_the_address_of_the_execution(page: str, expected: str | None) -> None:
    assert node_id({"FLYTE_EXECUTION_URL": page}) == expected
