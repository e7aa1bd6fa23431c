"""Which try of which job a process is, from the variables that schedulers set."""

from __future__ import annotations

import pytest

from chockstone.checkpoints.errors import ResumeError
from chockstone.checkpoints.resume.platforms import MAX_COUNT, JobIdentity

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_NAME": "train"}
ELASTIC = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "3",
}
JOBSET = {"JOBSET_RESTART_ATTEMPT": "2", "JOBSET_NAME": "run-7", "JOB_COMPLETION_INDEX": "0"}
SKYPILOT = {
    "SKYPILOT_TASK_ID": "sky-managed-2026-01-02-03-04-05-678901_train_12-0",
    "SKYPILOT_NODE_RANK": "0",
    "SKYPILOT_NUM_NODES": "1",
}
COUNTERS = ["SLURM_RESTART_COUNT", "JOBSET_RESTART_ATTEMPT", "TORCHELASTIC_RESTART_COUNT"]
HOSTILE = ["-1", "one", "1.0", "0x1", "1_0", " 1", "1\n", "+1", "٣", "100000", "9" * 5000]


def is_restarted(job: JobIdentity) -> bool:
    """Within its attempt, as people are told."""
    return "started again in place" in job.why


def test_nothing_known_is_one_process_that_comes_after_the_newest_attempt() -> None:
    job = JobIdentity.read({"PATH": "/bin", "HOME": "/root"})

    assert job.platform == "none"
    assert job.attempt is None
    assert (job.rank, job.world_size) == (0, 1)
    assert job.job is None
    assert not is_restarted(job)
    assert "after the newest" in job.why


def test_the_first_start_of_a_slurm_job_has_no_count_and_is_attempt_0() -> None:
    job = JobIdentity.read(SLURM)

    assert (job.platform, job.attempt, job.job) == ("slurm", 0, "4711")
    assert "SLURM_RESTART_COUNT is not set" in job.why


def test_a_requeued_slurm_job_is_numbered_by_its_restarts() -> None:
    job = JobIdentity.read(SLURM | {"SLURM_RESTART_COUNT": "3"})

    assert job.attempt == 3
    assert not is_restarted(job), "a requeue is an attempt of its own"
    assert "SLURM_RESTART_COUNT is 3" in job.why


def test_each_task_of_a_slurm_array_is_a_job_of_its_own() -> None:
    array = {"SLURM_ARRAY_JOB_ID": "4700"}

    jobs = [
        JobIdentity.read(SLURM | array | {"SLURM_JOB_ID": str(4711 + task), "SLURM_ARRAY_TASK_ID": str(task)}).job
        for task in (0, 1)
    ]

    assert jobs == ["4700_0", "4700_1"]


def test_a_batch_script_is_one_process_however_many_tasks_were_asked_for() -> None:
    job = JobIdentity.read(SLURM)

    assert (job.rank, job.world_size) == (0, 1)


def test_the_tasks_of_a_slurm_step_are_ranks() -> None:
    job = JobIdentity.read(SLURM | {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"})

    assert (job.rank, job.world_size) == (5, 8)


def test_the_launcher_of_the_processes_knows_their_ranks_best() -> None:
    agents = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}

    job = JobIdentity.read(SLURM | agents | ELASTIC)

    assert (job.rank, job.world_size) == (3, 8)


def test_torchelastic_starts_again_in_place_within_an_attempt_of_slurm() -> None:
    count = {"SLURM_RESTART_COUNT": "2", "TORCHELASTIC_RESTART_COUNT": "1"}

    job = JobIdentity.read(SLURM | ELASTIC | count)

    assert (job.platform, job.attempt, is_restarted(job)) == ("slurm", 2, True)
    assert "TORCHELASTIC_RESTART_COUNT is 1" in job.why
    assert "in place" in job.why


def test_numbers_never_go_back_over_the_life_of_a_job() -> None:
    """Worker failures within a requeue, and requeues in between: the agent counts from zero in each of its lives."""
    lives = [("", 0), ("", 1), ("", 2), ("1", 0), ("1", 1), ("2", 0)]

    attempts = [
        JobIdentity.read(SLURM | ELASTIC | {"SLURM_RESTART_COUNT": slurm, "TORCHELASTIC_RESTART_COUNT": str(elastic)})
        for slurm, elastic in lives
    ]

    assert [each.attempt for each in attempts] == [0, 0, 0, 1, 1, 2]
    assert [is_restarted(each) for each in attempts] == [False, True, True, False, True, False]


def test_torchelastic_alone_numbers_nothing_because_its_next_life_counts_from_zero() -> None:
    job = JobIdentity.read(ELASTIC | {"TORCHELASTIC_RESTART_COUNT": "4"})

    assert (job.platform, job.attempt, is_restarted(job)) == ("torchelastic", None, False)
    assert job.job is None, "'none' is what torchrun calls a run without a name"
    assert (job.rank, job.world_size) == (3, 8)


def test_a_jobset_is_numbered_by_what_its_manifest_hands_on() -> None:
    job = JobIdentity.read(JOBSET | ELASTIC | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})

    assert (job.platform, job.attempt, job.job) == ("jobset", 2, "run-7")


def test_an_annotation_that_is_not_there_is_an_empty_variable_and_no_count() -> None:
    job = JobIdentity.read({"JOBSET_RESTART_ATTEMPT": "", "KUBERNETES_SERVICE_HOST": "10.0.0.1"})

    assert (job.platform, job.attempt) == ("kubernetes", None)


def test_a_kubernetes_job_has_no_count_and_its_index_is_a_rank() -> None:
    kubernetes = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "4"}

    job = JobIdentity.read(kubernetes)

    assert (job.platform, job.attempt) == ("kubernetes", None)
    assert (job.rank, job.world_size) == (2, 4)


def test_an_index_among_nobody_knows_how_many_is_refused() -> None:
    assert JobIdentity.read({"JOB_COMPLETION_INDEX": "0"}).world_size == 1

    with pytest.raises(ResumeError, match="JOB_COMPLETION_INDEX=1 .* set WORLD_SIZE"):
        JobIdentity.read({"JOB_COMPLETION_INDEX": "1"})


def test_a_recovered_skypilot_task_keeps_its_id_and_has_no_number() -> None:
    job = JobIdentity.read(SKYPILOT)

    assert (job.platform, job.attempt) == ("skypilot", None)
    assert job.job == SKYPILOT["SKYPILOT_TASK_ID"]


def test_a_number_inside_of_a_platform_without_one_is_not_taken_for_its_own() -> None:
    """A recovery by SkyPilot on Slurm is a new Slurm job, whose restarts are counted from zero again."""
    job = JobIdentity.read(SKYPILOT | SLURM | {"SLURM_RESTART_COUNT": "1"})

    assert (job.platform, job.attempt, is_restarted(job)) == ("skypilot", None, False)
    assert "SLURM_RESTART_COUNT is 1 and is not used" in job.why


def test_of_two_numbers_the_outermost_counts_and_the_other_is_named() -> None:
    job = JobIdentity.read(JOBSET | SLURM | {"SLURM_RESTART_COUNT": "7"})

    assert (job.platform, job.attempt) == ("jobset", 2)
    assert "SLURM_RESTART_COUNT is 7 and is not used" in job.why


def test_nodes_of_skypilot_are_ranks_where_nothing_else_launched_them() -> None:
    job = JobIdentity.read(SKYPILOT | {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2"})

    assert (job.rank, job.world_size) == (1, 2)


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: ascii(value[:8]))
@pytest.mark.parametrize("name", COUNTERS)
def test_a_count_that_is_none_is_refused_by_the_name_of_its_variable(name: str, value: str) -> None:
    with pytest.raises(ResumeError, match=f"{name}=.* is not a number from 0 to {MAX_COUNT}") as raised:
        JobIdentity.read(SLURM | ELASTIC | {name: value})

    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: ascii(value[:8]))
@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_a_rank_that_is_none_is_refused_by_the_name_of_its_variable(name: str, value: str) -> None:
    with pytest.raises(ResumeError, match=f"{name}="):
        JobIdentity.read({"RANK": "0", "WORLD_SIZE": "2"} | {name: value})


def test_the_greatest_count_is_taken() -> None:
    assert JobIdentity.read(SLURM | {"SLURM_RESTART_COUNT": str(MAX_COUNT)}).attempt == MAX_COUNT


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RANK": "8", "WORLD_SIZE": "8"}, "RANK=8 is not a rank among WORLD_SIZE=8"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0 is not a rank among WORLD_SIZE=0"),
        ({"RANK": "1"}, "RANK='1' is set and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set and RANK is not"),
        ({"SLURM_PROCID": "4", "SLURM_STEP_NUM_TASKS": "4"}, "SLURM_PROCID=4 is not a rank among"),
    ],
)
def test_ranks_that_do_not_fit_together_are_refused(environ: dict[str, str], named: str) -> None:
    with pytest.raises(ResumeError, match=named):
        JobIdentity.read(environ)


@pytest.mark.parametrize("job", ["../../etc", "a/b", "", ".hidden", "a b", "x" * 300, "ä"])
def test_a_job_that_could_lead_elsewhere_is_refused(job: str) -> None:
    """It is offered as a part of paths."""
    if not job:
        assert JobIdentity.read(JOBSET | {"JOBSET_NAME": job}).job is None
        return

    with pytest.raises(ResumeError, match="JOBSET_NAME="):
        JobIdentity.read(JOBSET | {"JOBSET_NAME": job})
