"""Weights: saves a run under a name, loads it, copies and describes it."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import Header

from chockstone.api.context import ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep
from chockstone.backends.protocol import RunSpec
from chockstone.engine.runs.commands import Save
from chockstone.engine.runs.operations import request_id_of
from chockstone.engine.storage.verification import Latest
from chockstone.wire.messages.checkpoints import SkippedCheckpoint
from chockstone.wire.messages.futures import AcceptedResponse
from chockstone.wire.messages.models import OptimizerConfig
from chockstone.wire.messages.weights import (
    CopyWeightsRequest,
    CopyWeightsResponse,
    LoadWeightsRequest,
    SaveWeightsExternalRequest,
    SaveWeightsForSamplerRequest,
    SaveWeightsRequest,
    WeightsInfoRequest,
    WeightsInfoResponse,
)
from chockstone.wire.paths import Kind, TinkerPath

routes = Routes(tags=["weights"])


@routes.post("/save_weights", summary="Save a checkpoint")
async def save_weights(request: SaveWeightsRequest, context: ContextDep, caller: CallerDep) -> AcceptedResponse:
    run = await context.run(request.model_id, caller)
    command = Save(
        TinkerPath.of(run.run_id, Kind.WEIGHTS, request.path),
        request.ttl_seconds,
        request.overwrite,
        request.user_metadata or {},
    )
    request_id = await context.engine.training.save(run, request.seq_id, command)
    return AcceptedResponse(request_id=request_id, model_id=run.run_id)


@routes.post("/save_weights_for_sampler", summary="Save weights to sample from")
async def save_weights_for_sampler(
    request: SaveWeightsForSamplerRequest, context: ContextDep, caller: CallerDep
) -> AcceptedResponse:
    """With a name: save a checkpoint to sample from. Without: create a sampling session on the current weights."""
    run = await context.run(request.model_id, caller)
    training = context.engine.training
    if request.path is not None:
        path = TinkerPath.of(run.run_id, Kind.SAMPLER_WEIGHTS, request.path)
        command = Save(path, request.ttl_seconds, user_metadata=request.user_metadata or {})
        request_id = await training.save(run, request.seq_id, command)
    else:
        assert request.sampling_session_seq_id is not None  # one of the two is there
        request_id = await training.save_for_sampling(run, request.seq_id, request.sampling_session_seq_id)
    return AcceptedResponse(request_id=request_id, model_id=run.run_id)


@routes.post("/save_weights_external", summary="Export weights")
async def save_weights_external(
    request: SaveWeightsExternalRequest, context: ContextDep, caller: CallerDep
) -> AcceptedResponse:
    """Export as files for other programs, encrypted if there are recipients."""
    run = await context.run(request.model_id, caller)
    command = Save(
        TinkerPath.of(run.run_id, Kind.EXTERNAL_WEIGHTS, request.path),
        request.ttl_seconds,
        user_metadata=request.user_metadata or {},
        recipients=tuple(request.age_encryption_recipients or ()),
    )
    request_id = await context.engine.training.save(run, request.seq_id, command)
    return AcceptedResponse(request_id=request_id, model_id=run.run_id)


@routes.post("/load_weights", summary="Load a checkpoint into a run")
async def load_weights(request: LoadWeightsRequest, context: ContextDep, caller: CallerDep) -> AcceptedResponse:
    """Load into an existing run or, given a session, into a new run."""
    run_id = request.model_id or f"{request.session_id}:train:{request.model_seq_id}"
    request_id = request_id_of(run_id, request.seq_id or 0)  # a run's opening has number 0
    if await context.promise(request_id, caller) is not None:  # a retry, whose source may be deleted since
        return AcceptedResponse(request_id=request_id, model_id=run_id)
    reader = context.identify_reader(request.weights_access_token, caller)
    found = await context.checkpoint(request.path, reader, kinds=(Kind.WEIGHTS,))
    source = found.row
    if request.model_id is not None:
        run = await context.run(request.model_id, caller)
        request_id = await context.engine.training.load(
            run, request.seq_id, source, with_optimizer=request.optimizer, skipped=found.skipped
        )
        context.audit_read(source, caller, purpose="load")
        return AcceptedResponse(request_id=request_id, model_id=run.run_id)
    assert request.session_id is not None  # with model_seq_id, if there is no model_id
    assert request.model_seq_id is not None
    session = await context.open_session(request.session_id, caller)
    base_model = request.base_model or source.base_model
    context.model(base_model)
    optimizer = dict(source.optimizer_config)
    if request.optimizer_config is not None or not request.optimizer:
        optimizer = (request.optimizer_config or OptimizerConfig()).model_dump()
    request_id = await context.engine.training.open(
        session.session_id,
        request.model_seq_id,
        owner=caller.user_id,
        base_model=base_model,
        spec=RunSpec.from_json({**source.spec, "optimizer": optimizer["type"]}),
        optimizer=optimizer,
        user_metadata=request.user_metadata or {},
        project_id=session.project_id,
        source=source,
        with_optimizer=request.optimizer,
        skipped=found.skipped,
    )
    context.audit_read(source, caller, purpose="load")
    return AcceptedResponse(request_id=request_id, model_id=f"{session.session_id}:train:{request.model_seq_id}")


@routes.post("/weights_info", summary="Describe a checkpoint")
async def weights_info(request: WeightsInfoRequest, context: ContextDep, caller: CallerDep) -> WeightsInfoResponse:
    found = await context.checkpoint(request.tinker_path, caller)
    row = found.row
    return WeightsInfoResponse(
        base_model=row.base_model,
        is_lora=row.spec["rank"] > 0,
        lora_rank=row.spec["rank"],
        train_unembed=row.spec["train_unembed"],
        train_mlp=row.spec["train_mlp"],
        train_attn=row.spec["train_attn"],
        optimizer_config=OptimizerConfig(**row.optimizer_config),
        path=row.path,
        skipped=skipped(found),
    )


@routes.post("/copy_weights", summary="Copy a checkpoint")
async def copy_weights(
    request: CopyWeightsRequest,
    context: ContextDep,
    caller: CallerDep,
    x_idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
    x_tinker_weights_access_token: Annotated[str | None, Header(max_length=10_000)] = None,
) -> CopyWeightsResponse:
    """Copy into a new run that is not loaded. The copy shares the bytes of its source, but not its expiry."""
    context.refuse_when_stopping()
    token = x_tinker_weights_access_token or request.weights_access_token
    reader = context.identify_reader(token, caller)
    project_id, key = request.destination_project_id, x_idempotency_key
    if request.session_id is not None:
        session = await context.open_session(request.session_id, caller)
        project_id, key = session.project_id, f"{session.session_id}:train:{request.model_seq_id}"
    source = (await context.checkpoint(request.source_path, reader)).row
    copy = await context.engine.checkpoints.copy(
        source,
        owner=caller.user_id,
        project_id=project_id,
        idempotency_key=key or str(uuid.uuid4()),
        ttl_seconds=request.ttl_seconds,
        by=caller.user_id,
    )
    context.audit_read(source, caller, purpose="copy")
    return CopyWeightsResponse(tinker_path=copy.path)


def skipped(found: Latest) -> list[SkippedCheckpoint] | None:
    """The checkpoints that ``latest`` skipped; None if there were none."""
    return [SkippedCheckpoint(path=each.path, reason=each.reason) for each in found.skipped] or None
