"""Every JSON request as the SDK sends it, every response as the SDK reads it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError
from tinker import types
from tinker._compat import model_dump
from tinker.types import (
    audit_log_response,
    auth_token_response,
    billing_usage_response,
    checkpoints_list_response,
    client_config_request,
    client_config_response,
    client_dynamic_config_response,
    copy_weights_request,
    copy_weights_response,
    create_custom_loss_request,
    create_custom_loss_response,
    current_checkpoint_storage_usage_response,
    custom_loss_graph,
    custom_loss_input,
    external_weights_urls_response,
    futures_retrieve_request,
    futures_retrieve_response,
    join_sampling_session_request,
    join_sampling_session_response,
    optimizer,
    save_weights_external_request,
    save_weights_external_response,
    search_owner,
    session_search_cursor,
    session_search_request,
    session_search_response,
    session_status_query,
    try_again_response,
)
from tinker.types._pydantic_types import save_weights_for_sampler_response as sampler_response

from chockstone.wire.failures import BadRequest
from chockstone.wire.messages import (
    audit,
    billing,
    checkpoints,
    credentials,
    futures,
    models,
    policies,
    runs,
    sampling_sessions,
    schema,
    service,
    sessions,
    weights,
)
from chockstone.wire.messages import service as telemetry
from chockstone.wire.messages import training as custom_losses
from chockstone.wire.messages import training as steps
from chockstone.wire.paths import Kind, TinkerPath

NOON = datetime(2026, 1, 2, 12, 30, tzinfo=UTC)
PATH = "tinker://s:train:0/weights/final"


def sent(request: BaseModel) -> Any:
    """A request's body as the SDK sends it: nulls dropped."""
    return orjson.loads(orjson.dumps(model_dump(request, exclude_unset=False, exclude_none=True, mode="json")))


GRAPH = custom_loss_graph.CustomLossGraph(
    nodes=[
        custom_loss_graph.CustomLossNode(op="placeholder", name="logprobs", target="logprobs"),
        custom_loss_graph.CustomLossNode(op="call_method", name="sum_1", target="sum", args=[{"ref": "logprobs"}]),
        custom_loss_graph.CustomLossNode(
            op="output", name="output", target="output", args=[{"tuple": [{"ref": "sum_1"}]}]
        ),
    ]
)

REQUESTS: list[tuple[type[schema.Request], BaseModel]] = [
    (service.ClientConfigRequest, client_config_request.ClientConfigRequest(sdk_version="0.36.0")),
    (
        sessions.CreateSessionRequest,
        types.CreateSessionRequest(tags=["a"], user_metadata={"a": "b"}, sdk_version="0.36.0", display_name="d"),
    ),
    (sessions.SessionHeartbeatRequest, types.SessionHeartbeatRequest(session_id="s")),
    (
        sessions.SearchSessionsRequest,
        session_search_request.SessionSearchRequest(
            session_id="s",
            project_ids=["p"],
            user_metadata={"a": "b"},
            display_name="two words",
            owner=search_owner.UserSearchOwner(owner_urns=["u"]),
            statuses=[
                session_status_query.ActiveSessionStatusQuery(),
                session_status_query.ClientFinishedSessionStatusQuery(reasons=["errored"]),
            ],
            limit=200,
            cursor=session_search_cursor.SessionSearchCursor(last_created_at=NOON, last_session_id="t"),
        ),
    ),
    (
        models.CreateModelRequest,
        types.CreateModelRequest(
            session_id="s",
            model_seq_id=0,
            base_model="Qwen/Qwen3-8B",
            user_metadata={"renderer_name": "qwen3"},
            lora_config=types.LoraConfig(rank=32, seed=1, train_mlp=False),
            optimizer_config=optimizer.DimuonOptimizerConfig(),
        ),
    ),
    (models.GetInfoRequest, types.GetInfoRequest(model_id="s:train:0")),
    (models.UnloadModelRequest, types.UnloadModelRequest(model_id="s:train:0")),
    (steps.OptimStepRequest, types.OptimStepRequest(optim_params=types.AdamParams(), model_id="m", seq_id=2)),
    (
        steps.OptimStepRequest,
        types.OptimStepRequest(optim_params=optimizer.DimuonParams(learning_rate=1e-3), model_id="m", seq_id=2),
    ),
    (
        custom_losses.CreateCustomLossRequest,
        create_custom_loss_request.CreateCustomLossRequest(
            session_id="s",
            custom_loss_seq_id=0,
            name="mine",
            inputs=[
                custom_loss_input.CustomLossInput(name="logprobs", rank=1),
                custom_loss_input.CustomLossInput(name="beta", rank=0),
            ],
            graph=GRAPH,
        ),
    ),
    (
        weights.SaveWeightsRequest,
        types.SaveWeightsRequest(model_id="m", path="000020", seq_id=3, ttl_seconds=3600, user_metadata={"a": "b"}),
    ),
    (weights.SaveWeightsForSamplerRequest, types.SaveWeightsForSamplerRequest(model_id="m", path="final", seq_id=3)),
    (
        weights.SaveWeightsForSamplerRequest,
        types.SaveWeightsForSamplerRequest(model_id="m", sampling_session_seq_id=0, seq_id=3),
    ),
    (weights.LoadWeightsRequest, types.LoadWeightsRequest(model_id="m", seq_id=1, path=PATH, optimizer=False)),
    (
        weights.LoadWeightsRequest,
        types.LoadWeightsRequest(
            session_id="s",
            model_seq_id=0,
            path=PATH,
            optimizer=True,
            base_model="b",
            user_metadata={"a": "b"},
            optimizer_config=optimizer.AdamOptimizerConfig(),
            weights_access_token="tml-other",
        ),
    ),
    (
        weights.SaveWeightsExternalRequest,
        save_weights_external_request.SaveWeightsExternalRequest(
            model_id="m",
            path="adapter",
            seq_id=3,
            ttl_seconds=7200,
            age_encryption_recipients=["age1x", "ssh-ed25519 y"],
        ),
    ),
    (
        weights.CopyWeightsRequest,
        copy_weights_request.CopyWeightsRequest(source_path=PATH, destination_project_id="p", ttl_seconds=3600),
    ),
    (
        weights.CopyWeightsRequest,
        copy_weights_request.CopyWeightsRequest(
            source_path=PATH, session_id="s", model_seq_id=1, weights_access_token="tml-other"
        ),
    ),
    (
        sampling_sessions.CreateSamplingSessionRequest,
        types.CreateSamplingSessionRequest(session_id="s", sampling_session_seq_id=0, model_path=PATH, base_model="b"),
    ),
    (
        sampling_sessions.JoinSamplingSessionRequest,
        join_sampling_session_request.JoinSamplingSessionRequest(sampling_session_id="s:sample:0"),
    ),
    (futures.RetrieveFutureRequest, types.FutureRetrieveRequest(request_id="r", allow_metadata_only=True)),
    (
        futures.RetrieveFuturesRequest,
        futures_retrieve_request.FuturesRetrieveRequest(
            target=futures_retrieve_request.SamplingSessionFuturesTarget(
                sampling_session_id="s:sample:0", cloned_sampler_id=10**9
            ),
            prev_cursor=2**40,
            timeout=25,
            retrieved_request_ids=["a", "b"],
        ),
    ),
]


@pytest.mark.parametrize(
    ("ours", "theirs"), REQUESTS, ids=[f"{i}-{theirs.__class__.__name__}" for i, (_, theirs) in enumerate(REQUESTS)]
)
def test_what_the_sdk_sends_is_read_in_full(ours: type[schema.Request], theirs: BaseModel) -> None:
    body = sent(theirs)

    read = schema.read(ours, body)

    kept = orjson.loads(read.model_dump_json(exclude_none=True))
    body.pop("type", None)
    body.pop("record_stability_info", None)
    assert body.items() <= kept.items()


CHECKPOINT = checkpoints.Checkpoint.at(
    TinkerPath.of("s:train:0", Kind.WEIGHTS, "final"),
    time=NOON,
    size_bytes=5,
    expires_at=NOON,
    user_metadata={"a": "b"},
)
SUMMARY = sessions.SessionSummary(
    session_id="s", created_at=NOON, owner="o", project_id="", checkpoints_count=2, checkpoint_storage_bytes=9
)
FAILED_BY = [
    sessions.FailedRequest(request_id="r", request_type="Sample"),
    sessions.FailedRun(training_run_id="t"),
    sessions.FailedSamplingSession(sampling_session_id="s"),
]
STATUSES: list[sessions.SessionStatus] = [
    sessions.ActiveStatus(),
    sessions.CancelledStatus(detail="d"),
    sessions.FinishedStatus(reason=sessions.ReportedReason(type="errored"), detail="d"),
    *(sessions.FailedStatus(category="user", reason=reason, message="m") for reason in FAILED_BY),
]
RUN = runs.TrainingRun(
    training_run_id="s:train:0",
    base_model="b",
    model_owner="o",
    is_lora=True,
    last_request_time=NOON,
    lora_rank=32,
    last_checkpoint=CHECKPOINT,
    user_metadata={"a": "b"},
)

RESPONSES: list[tuple[schema.Response, Any]] = [
    (service.HealthResponse(), types.HealthResponse),
    (
        service.ServerCapabilitiesResponse(
            supported_models=[service.SupportedModel(model_name="b", max_context_length=2048)]
        ),
        types.GetServerCapabilitiesResponse,
    ),
    (service.ClientConfigResponse(), client_config_response.ClientConfigResponse),
    (service.ClientDynamicConfigResponse(), client_dynamic_config_response.ClientDynamicConfigResponse),
    (credentials.AuthTokenResponse(jwt="eyJ"), auth_token_response.AuthTokenResponse),
    (telemetry.TelemetryResponse(), types.TelemetryResponse),
    (sessions.CreateSessionResponse(session_id="s", info_message="hello"), types.CreateSessionResponse),
    (sessions.SessionHeartbeatResponse(), types.SessionHeartbeatResponse),
    (sessions.ListSessionsResponse(sessions=["s"]), types.ListSessionsResponse),
    (
        sessions.SessionResponse(training_run_ids=["s:train:0"], sampler_ids=[], user_metadata={"a": "b"}),
        types.GetSessionResponse,
    ),
    (
        sessions.SearchSessionsResponse(
            sessions=[SUMMARY, *(SUMMARY.model_copy(update={"status": status}) for status in STATUSES)],
            next_cursor=sessions.NextPage(last_created_at=NOON, last_session_id="s"),
        ),
        session_search_response.SessionSearchResponse,
    ),
    (models.CreateModelResponse(model_id="m"), types.CreateModelResponse),
    (
        models.GetInfoResponse(
            model_id="m",
            model_data=models.ModelData(model_name="b", tokenizer_id="t"),
            is_lora=True,
            lora_rank=4,
            optimizer_config=models.OptimizerConfig(type="dimuon", version=1),
        ),
        types.GetInfoResponse,
    ),
    (models.UnloadModelResponse(model_id="m"), types.UnloadModelResponse),
    (steps.OptimStepResponse(metrics={"grad_norm": 1.0}), types.OptimStepResponse),
    (steps.OptimStepResponse(), types.OptimStepResponse),
    (custom_losses.CreateCustomLossResponse(loss_id="l"), create_custom_loss_response.CreateCustomLossResponse),
    (weights.SaveWeightsResponse(path=PATH), types.SaveWeightsResponse),
    (weights.SaveWeightsForSamplerResponse(path=PATH), types.SaveWeightsForSamplerResponse),
    (
        weights.SaveWeightsForSamplerResponse(sampling_session_id="s:sample:0"),
        sampler_response.SaveWeightsForSamplerResponseInternal,
    ),
    (weights.LoadWeightsResponse(path=PATH, model_id="m"), types.LoadWeightsResponse),
    (weights.LoadWeightsResponse(), types.LoadWeightsResponse),
    (
        weights.WeightsInfoResponse(base_model="b", is_lora=True, lora_rank=4, train_mlp=False),
        types.WeightsInfoResponse,
    ),
    (
        sampling_sessions.CreateSamplingSessionResponse(sampling_session_id="s:sample:0"),
        types.CreateSamplingSessionResponse,
    ),
    (
        sampling_sessions.JoinSamplingSessionResponse(client_counter=1),
        join_sampling_session_response.JoinSamplingSessionResponse,
    ),
    (sampling_sessions.SamplerResponse(sampler_id="s:sample:0", base_model="b"), types.GetSamplerResponse),
    (futures.AcceptedResponse(request_id="r", sample_sequence_ids=["a"]), types.UntypedAPIFuture),
    (futures.TryAgainResponse(request_id="r", queue_state="paused_capacity"), try_again_response.TryAgainResponse),
    (
        futures.RetrieveFuturesResponse(
            completions=[
                futures.FinishedCompletion(request_id="a", response_payload_uncompressed_size=4),
                futures.FailedCompletion(request_id="b"),
            ],
            cursor=7,
        ),
        futures_retrieve_response.FuturesRetrieveResponse,
    ),
    (CHECKPOINT, types.Checkpoint),
    (checkpoints.CheckpointsResponse(checkpoints=[CHECKPOINT]), checkpoints_list_response.CheckpointsListResponse),
    (
        checkpoints.CheckpointsResponse(
            checkpoints=[CHECKPOINT], cursor=checkpoints.Cursor(offset=0, limit=100, total_count=1)
        ),
        checkpoints_list_response.CheckpointsListResponse,
    ),
    (
        checkpoints.ExternalWeightsUrlsResponse(urls={"adapter_config.json": "http://h/x"}, expires=NOON),
        external_weights_urls_response.ExternalWeightsUrlsResponse,
    ),
    (
        weights.SaveWeightsExternalResponse(path=PATH, size_bytes=9),
        save_weights_external_response.SaveWeightsExternalResponseInternal,
    ),
    (weights.CopyWeightsResponse(tinker_path=PATH), copy_weights_response.CopyWeightsResponse),
    (
        audit.AuditResponse(
            entries=[
                audit.AuditEntry(
                    timestamp=NOON,
                    event="checkpoint_read",
                    event_details={"by": "o", "n": 3},
                    model_id="m",
                    tinker_path=PATH,
                    purpose="download",
                )
            ]
        ),
        audit_log_response.AuditLogResponse,
    ),
    (
        billing.UsageResponse(
            data=[
                billing.UsageEvent(
                    bucket_start=NOON,
                    bucket_end=NOON,
                    base_model="b",
                    user_id="o",
                    user_name="o",
                    session_id="s",
                    project_id="p",
                    event_info=info,
                )
                for info in (
                    billing.TrainingUse(token_count=3),
                    billing.PrefillUse(cached=False, token_count=3),
                    billing.SampleUse(token_count=3),
                    billing.CheckpointUse(count=1),
                    billing.StorageUse(gigabyte_hours=0.5),
                )
            ],
            sessions={"s": billing.UsageSession(user_metadata={"a": "b"}), "t": billing.UsageSession()},
        ),
        billing_usage_response.BillingUsageResponse,
    ),
    (
        billing.StorageUsageResponse(
            data=[
                billing.StorageUsageItem(
                    project_id="p",
                    org_user_urn="o",
                    user_name="o",
                    checkpoint_count=2,
                    size_bytes=10**9,
                    size_gigabytes=1.0,
                )
            ]
        ),
        current_checkpoint_storage_usage_response.CurrentCheckpointStorageUsageResponse,
    ),
    (RUN, types.TrainingRun),
    (
        runs.TrainingRunsResponse(training_runs=[RUN], cursor=checkpoints.Cursor(offset=0, limit=20, total_count=1)),
        types.TrainingRunsResponse,
    ),
]


@pytest.mark.parametrize(
    ("ours", "theirs"), RESPONSES, ids=[f"{i}-{theirs.__name__}" for i, (_, theirs) in enumerate(RESPONSES)]
)
def test_what_we_answer_is_read_by_the_sdk_in_full(ours: schema.Response, theirs: Any) -> None:
    answer = orjson.loads(ours.encode())

    read = TypeAdapter(theirs).validate_json(ours.encode(), strict=True)

    understood = orjson.loads(orjson.dumps(TypeAdapter(theirs).dump_python(read, mode="json", exclude_none=True)))
    assert answer.items() <= understood.items()


def test_clients_are_told_how_to_treat_a_server_of_one_s_own() -> None:
    assert orjson.loads(service.ClientConfigResponse().encode()) == {
        "pjwt_auth_enabled": True,
        "parallel_fwdbwd_chunks": False,
        "proto_compress_fwdbwd": False,
        "billing_exception_max_pause_duration_sec": 0,
        "create_model_via_load_weights": True,
        "sample_use_retrieve_futures": False,
        "sample_join_sampling_session": True,
        "custom_loss_server_side": True,
    }
    assert orjson.loads(service.ClientDynamicConfigResponse().encode())["sample_cancel_enabled"] is True


def test_times_are_written_in_utc_with_a_z() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5)))

    answer = orjson.loads(SUMMARY.model_copy(update={"created_at": elsewhere}).encode())

    assert answer["created_at"] == "2026-01-02T12:30:00Z"
    with pytest.raises(ValidationError):
        sessions.NextPage(last_created_at=NOON.replace(tzinfo=None), last_session_id="s")


def test_an_expiry_is_taken_away_by_an_explicit_null_only() -> None:
    assert schema.read(checkpoints.SetTtlRequest, {"ttl_seconds": None}).ttl_seconds is None
    assert schema.read(checkpoints.SetTtlRequest, {"ttl_seconds": 3600}).ttl_seconds == 3600


def test_damage_is_shown_to_clients_that_know_no_states() -> None:
    path = TinkerPath.of("s:train:0", Kind.WEIGHTS, "hurt")

    damaged = checkpoints.Checkpoint.at(
        path, time=NOON, user_metadata={"a": "b"}, state="damaged", damage="block 3 is not what was written"
    )

    answer = orjson.loads(damaged.encode())
    assert (answer["state"], answer["damage"]) == ("damaged", "block 3 is not what was written")
    theirs = TypeAdapter(types.Checkpoint).validate_json(damaged.encode())
    assert theirs.user_metadata == {"a": "b", "chockstone.damage": "block 3 is not what was written"}


def test_a_policy_is_kept_as_it_was_given() -> None:
    given = {"keep_last": 3, "keep_best": {"metric": "loss", "mode": "max", "count": 2}, "ttl_seconds": 60}

    assert schema.read(policies.Policy, given).to_json() == given


def test_metadata_becomes_text() -> None:
    given = {"a": "b", "rank": 8, "lr": 1e-4, "on": True, "none": None, "list": [1, "x"], "é": {"k": 2.5}}

    read = schema.read(sessions.CreateSessionRequest, {"tags": [], "user_metadata": given, "sdk_version": "1"})

    assert read.user_metadata == {
        "a": "b",
        "rank": "8",
        "lr": "0.0001",
        "on": "true",
        "none": "null",
        "list": '[1,"x"]',
        "é": '{"k":2.5}',
    }


def test_fields_of_other_versions_are_let_pass() -> None:
    assert schema.read(models.GetInfoRequest, {"model_id": "m", "type": "get_info", "new": {"a": 1}}).model_id == "m"


def test_what_older_clients_leave_out_has_a_default() -> None:
    created = schema.read(models.CreateModelRequest, {"session_id": "s", "model_seq_id": 0, "base_model": "b"})
    nulled = schema.read(
        models.CreateModelRequest,
        {"session_id": "s", "model_seq_id": 0, "base_model": "b", "lora_config": None, "optimizer_config": None},
    )
    loaded = schema.read(weights.LoadWeightsRequest, {"model_id": "m", "seq_id": 1, "path": PATH})

    assert created == nulled
    assert (created.lora_config.rank, created.optimizer_config.type) == (32, "adamw")
    assert loaded.optimizer and not loaded.creates_model


def test_explicit_nulls_are_absent() -> None:
    finish = schema.read(sessions.FinishSessionRequest, {"reason": {"type": "success"}, "detail": None})

    assert finish.detail is None


def test_a_family_of_optimizers_keeps_its_own_fields() -> None:
    config = models.OptimizerConfig.model_validate({"type": "dimuon", "version": 1})

    assert config.model_dump() == {"type": "dimuon", "version": 1}


def test_query_strings_are_numbers() -> None:
    assert schema.read(runs.ListQuery, {"limit": "5", "offset": "10"}) == runs.ListQuery(limit=5, offset=10)


def create_model(**change: Any) -> dict[str, Any]:
    return {"session_id": "s", "model_seq_id": 0, "base_model": "b", **change}


EXTERNAL = {"model_id": "m", "seq_id": 1, "path": "a"}
REFUSALS: list[tuple[type[schema.Request], Any, str]] = [
    (
        weights.SaveWeightsRequest,
        EXTERNAL | {"path": "latest"},
        "nor 'latest', which stands for the newest checkpoint.",
    ),
    (
        weights.SaveWeightsExternalRequest,
        EXTERNAL | {"age_encryption_recipients": ["age1x"] * 11},
        "age_encryption_recipients: 11 recipients are too many; there may be up to 10.",
    ),
    (
        weights.SaveWeightsExternalRequest,
        EXTERNAL | {"age_encryption_recipients": []},
        "age_encryption_recipients: the list is empty: name a recipient, or leave the field out to have plain files.",
    ),
    (
        weights.SaveWeightsExternalRequest,
        EXTERNAL | {"age_encryption_recipients": [""]},
        "age_encryption_recipients[0] must have at least 1 character, not 0.",
    ),
    (weights.CopyWeightsRequest, {"source_path": "weights/a"}, "source_path: 'weights/a' is not a checkpoint."),
    (
        weights.CopyWeightsRequest,
        {"source_path": PATH, "session_id": "s"},
        "session_id and model_seq_id are needed together",
    ),
    (
        weights.CopyWeightsRequest,
        {"source_path": PATH, "session_id": "s", "model_seq_id": 0, "destination_project_id": "p"},
        "either destination_project_id or session_id, and not both.",
    ),
    (checkpoints.SetTtlRequest, {}, "ttl_seconds is missing."),
    (checkpoints.SetTtlRequest, {"ttl_seconds": 3599}, "ttl_seconds: 3599 seconds are not between an hour (3600)"),
    (checkpoints.SetTtlRequest, {"ttl_seconds": 10**40}, "seconds are not between an hour (3600) and ten years."),
    (policies.Policy, {"keeplast": 3}, "keeplast is not a field of this request."),
    (policies.Policy, {"keep_last": 0}, "keep_last must be greater than or equal to 1, not 0."),
    (policies.Policy, {"keep_best": {"mode": "min"}}, "keep_best.metric is missing."),
    (policies.Policy, {"keep_best": {"metric": "loss", "mode": "low"}}, "keep_best.mode must be 'min' or 'max'"),
    (policies.Policy, {"ttl_seconds": -1}, "ttl_seconds must be greater than 0"),
    (policies.Policy, {"quota_bytes": 2**63}, "quota_bytes must be less than or equal to"),
    (models.GetInfoRequest, {}, "model_id is missing."),
    (models.GetInfoRequest, [], "the body must be a valid dictionary or instance of GetInfoRequest, not a list."),
    (models.GetInfoRequest, {"model_id": 4}, "model_id must be a valid string, not 4."),
    (models.GetInfoRequest, {"model_id": ""}, "model_id must have at least 1 character, not 0."),
    (models.GetInfoRequest, {"model_id": "m" * 256}, "model_id must have at most 255 characters, not 256."),
    (
        models.CreateModelRequest,
        create_model(model_seq_id=-1),
        "model_seq_id must be greater than or equal to 0, not -1.",
    ),
    (models.CreateModelRequest, create_model(model_seq_id="0"), "model_seq_id must be a valid integer, not '0'."),
    (models.CreateModelRequest, create_model(model_seq_id=True), "model_seq_id must be a valid integer, not true."),
    (models.CreateModelRequest, create_model(model_seq_id=10**5000), "not an integer of more than 100 bits"),
    (
        models.CreateModelRequest,
        create_model(lora_config={"rank": -1}),
        "lora_config.rank must be greater than or equal",
    ),
    (
        models.CreateModelRequest,
        create_model(lora_config={"rank": 8193}),
        "lora_config.rank must be less than or equal",
    ),
    (
        models.CreateModelRequest,
        create_model(lora_config={"rank": 8, "train_mlp": False, "train_attn": False, "train_unembed": False}),
        "lora_config: train_unembed, train_mlp and train_attn are all false: nothing would be trained.",
    ),
    (
        models.CreateModelRequest,
        create_model(optimizer_config={"type": 3}),
        "optimizer_config.type must be a valid string",
    ),
    (
        models.CreateModelRequest,
        create_model(user_metadata=[]),
        "user_metadata must be a valid dictionary, not a list.",
    ),
    (
        models.CreateModelRequest,
        create_model(user_metadata={"a": "\ud800"}),
        "'\\ud800' holds a NUL or half a surrogate",
    ),
    (
        models.CreateModelRequest,
        create_model(user_metadata={"a": ["\ud800"]}),
        "'\\ud800' holds a NUL or half a surrogate",
    ),
    (models.CreateModelRequest, create_model(user_metadata={"a": 2**70}), "user_metadata: a value cannot be written"),
    (models.CreateModelRequest, create_model(user_metadata={"a": "x" * 300_000}), "300001 characters are more than"),
    (models.CreateModelRequest, create_model(user_metadata=dict.fromkeys(map(str, range(300)))), "300 fields are more"),
    (sessions.CreateSessionRequest, {"tags": ["a"] * 101}, "tags must have at most 100 items, not 101."),
    (models.CreateModelRequest, create_model(base_model="a\0b"), "'a\\x00b' holds a NUL or half a surrogate"),
    (sessions.CreateSessionRequest, {"tags": [1]}, "tags[0] must be a valid string, not 1."),
    (sessions.FinishSessionRequest, {"reason": {"type": "bored"}}, "reason.type must be 'success', 'errored' or"),
    (sessions.SearchSessionsRequest, {"limit": 201}, "limit must be less than or equal to 200, not 201."),
    (sessions.SearchSessionsRequest, {"owner": {"type": "all"}}, "owner: Input tag 'all' found"),
    (
        sessions.SearchSessionsRequest,
        {"owner": {"type": "user", "owner_urns": []}},
        "owner_urns must have at least 1 item, not 0.",
    ),
    (
        sessions.SearchSessionsRequest,
        {"cursor": {"last_created_at": "2026-01-01T00:00:00", "last_session_id": "s"}},
        "cursor.last_created_at must have timezone info",
    ),
    (
        steps.OptimStepRequest,
        {"model_id": "m", "seq_id": 0, "adam_params": {}},
        "seq_id must be greater than or equal to 1",
    ),
    (
        steps.OptimStepRequest,
        {"model_id": "m", "seq_id": 2**31, "adam_params": {}},
        "seq_id must be less than or equal to",
    ),
    (steps.OptimStepRequest, {"model_id": "m", "seq_id": 1}, "either adam_params or optimizer_params is needed"),
    (
        steps.OptimStepRequest,
        {"model_id": "m", "seq_id": 1, "adam_params": {}, "optimizer_params": {"type": "a"}},
        "either adam_params or optimizer_params is needed, and not both.",
    ),
    (
        steps.OptimStepRequest,
        {"model_id": "m", "seq_id": 1, "optimizer_params": {}},
        "optimizer_params.type is missing",
    ),
    (weights.SaveWeightsRequest, {"model_id": "m", "seq_id": 1}, "path is missing."),
    (
        weights.SaveWeightsRequest,
        {"model_id": "m", "seq_id": 1, "path": "../x"},
        "path: '../x' cannot name a checkpoint. A name has 1 to 255 characters",
    ),
    (
        weights.SaveWeightsRequest,
        {"model_id": "m", "seq_id": 1, "path": "x", "ttl_seconds": 3599},
        "ttl_seconds: 3599 seconds are not between an hour (3600) and ten years.",
    ),
    (
        weights.SaveWeightsForSamplerRequest,
        {"model_id": "m", "seq_id": 1},
        "either path or sampling_session_seq_id is needed, and not both.",
    ),
    (
        weights.LoadWeightsRequest,
        {"model_id": "m", "seq_id": 1, "path": "tinker://m/x"},
        "path: 'tinker://m/x' is not a checkpoint. Paths are tinker://<run id>/<kind>/<name>",
    ),
    (
        weights.LoadWeightsRequest,
        {"path": PATH},
        "either model_id and seq_id, or session_id and model_seq_id are needed.",
    ),
    (weights.LoadWeightsRequest, {"path": PATH, "model_id": "m"}, "either model_id and seq_id, or session_id"),
    (
        weights.LoadWeightsRequest,
        {"path": PATH, "model_id": "m", "seq_id": 1, "session_id": "s"},
        "either model_id and seq_id, or session_id",
    ),
    (
        sampling_sessions.CreateSamplingSessionRequest,
        {"session_id": "s", "sampling_session_seq_id": 0},
        "either model_path or base_model is needed.",
    ),
    (
        futures.RetrieveFutureRequest,
        {"request_id": "r", "allow_metadata_only": 1},
        "allow_metadata_only must be a valid b",
    ),
    (futures.RetrieveFuturesRequest, {"target": {"type": "run"}}, "target.type must be 'sampling_session', not 'run'."),
    (
        futures.RetrieveFuturesRequest,
        {"target": {"sampling_session_id": "s"}, "timeout": float("inf")},
        "timeout must be a finite number",
    ),
    (
        custom_losses.CreateCustomLossRequest,
        {
            "session_id": "s",
            "custom_loss_seq_id": 0,
            "name": "n",
            "inputs": [{"name": "a", "rank": 1}],
            "graph": {"nodes": [{"op": "output", "name": "o", "target": "output"}]},
        },
        "the first of inputs must be 'logprobs', of rank 1 or 2.",
    ),
]


@pytest.mark.parametrize(("request_type", "body", "words"), REFUSALS, ids=[words for *_, words in REFUSALS])
def test_what_is_wrong_is_said(request_type: type[schema.Request], body: Any, words: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        schema.read(request_type, body)

    assert words in str(refusal.value)
    assert len(str(refusal.value)) < 1000


def test_a_refusal_repeats_no_credential() -> None:
    body = {"model_id": "m", "seq_id": "tml-key", "path": "tml-key", "weights_access_token": ["hunter2"]}

    with pytest.raises(BadRequest) as refusal:
        schema.read(weights.LoadWeightsRequest, body)

    assert "tml-key" not in str(refusal.value)
    assert "hunter2" not in str(refusal.value)
    assert "tml-other" not in repr(
        schema.read(
            weights.LoadWeightsRequest,
            {"model_id": "m", "seq_id": 1, "path": PATH, "weights_access_token": "tml-other"},
        )
    )


def test_errors_of_a_framework_are_explained_alike() -> None:
    errors = [{"type": "missing", "loc": ("body", "model_id"), "msg": "Field required", "input": {}}]

    assert schema.explain(errors) == "model_id is missing."
    assert schema.explain([{**errors[0], "loc": ("query", "limit")}]) == "limit is missing."
    assert schema.explain([{**errors[0], "loc": ("path",)}]) == "path is missing."


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(PATH),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(derandomize=True, deadline=None, max_examples=250)
@given(st.data())
def test_any_json_gives_a_request_or_a_refusal(data: st.DataObject) -> None:
    request_type, theirs = data.draw(st.sampled_from(REQUESTS))
    body = sent(theirs)
    holder = body
    while True:
        name = data.draw(st.sampled_from(sorted(holder)))
        if isinstance(holder[name], dict) and holder[name] and data.draw(st.booleans()):
            holder = holder[name]
            continue
        holder[name] = data.draw(JSON)
        break

    with contextlib.suppress(BadRequest):
        schema.read(request_type, body)


def test_importing_the_room_loads_nothing_heavy() -> None:
    codecs = "messages_pb2 pass_request pass_result sample_request sample_result compression"
    modules = [f"codecs.{name}" for name in codecs.split()] + ["paths", "messages.schema", "messages.sessions"]
    code = f"import sys, {', '.join(f'chockstone.wire.{name}' for name in modules)}; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert {"torch", "tinker", "fastapi", "sqlalchemy", "transformers"}.isdisjoint(loaded)
