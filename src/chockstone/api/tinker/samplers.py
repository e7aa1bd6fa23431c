"""Samplers: creates sampling sessions and submits samples."""

from __future__ import annotations

from fastapi import Request

from chockstone.api.bodies import off_loop, parse_object, read_body
from chockstone.api.context import Context, ContextDep
from chockstone.api.routes import Routes
from chockstone.api.tinker.weights import skipped
from chockstone.api.users import Caller, CallerDep
from chockstone.catalog import CheckpointRow, RowMissing
from chockstone.engine.samples.sampling import SamplerSource
from chockstone.engine.storage.verification import Latest
from chockstone.wire.codecs.sample_request import SampleHead, peek_sample
from chockstone.wire.messages.futures import AcceptedResponse
from chockstone.wire.messages.sampling_sessions import (
    CreateSamplingSessionRequest,
    CreateSamplingSessionResponse,
    JoinSamplingSessionRequest,
    JoinSamplingSessionResponse,
    SamplerResponse,
)
from chockstone.wire.model_names import ModelName
from chockstone.wire.paths import Kind

routes = Routes(tags=["samplers"])


@routes.post("/create_sampling_session", summary="Create a sampling session")
async def create_sampling_session(
    request: CreateSamplingSessionRequest, context: ContextDep, caller: CallerDep
) -> CreateSamplingSessionResponse:
    session = await context.open_session(request.session_id, caller)
    if request.model_path is None:
        base_model, found = request.base_model or "", None
        context.model(base_model)
    else:
        found = await _weights(context, caller, request.model_path)
        base_model = found.row.base_model
        context.audit_read(found.row, caller, purpose="sample")
    row = await context.catalog.samplers.create(
        session.session_id,
        request.sampling_session_seq_id,
        owner=caller.user_id,
        base_model=base_model,
        model_path=None if found is None else found.row.path,
        archive=None if found is None else found.row.archive,
        seal=None if found is None else found.row.seal,
        now=context.now(),
    )
    if found is not None:
        await _check_still_there(context, found.row, row.archive)
    return CreateSamplingSessionResponse(
        sampling_session_id=row.sampling_session_id,
        path=None if found is None else found.row.path,
        skipped=None if found is None else skipped(found),
    )


@routes.post("/join_sampling_session", summary="Join a sampling session")
async def join_sampling_session(
    request: JoinSamplingSessionRequest, context: ContextDep, caller: CallerDep
) -> JoinSamplingSessionResponse:
    await context.sampler(request.sampling_session_id, caller)
    counter = await context.catalog.samplers.join(request.sampling_session_id)
    return JoinSamplingSessionResponse(client_counter=counter)


@routes.get("/samplers/{sampling_session_id}", summary="Show a sampling session")
async def get_sampler(sampling_session_id: str, context: ContextDep, caller: CallerDep) -> SamplerResponse:
    row = await context.sampler(sampling_session_id, caller)
    return SamplerResponse(sampler_id=sampling_session_id, base_model=row.base_model, model_path=row.model_path)


@routes.post("/asample", summary="Sample tokens")
async def asample(request: Request, context: ContextDep, caller: CallerDep) -> AcceptedResponse:
    context.refuse_when_stopping()
    return await submit_sample(context, caller, await read_body(request))


async def submit_sample(context: Context, caller: Caller, body: bytes) -> AcceptedResponse:
    """Have the engine sample what ``body``, the JSON of an ``asample`` request, asks for."""
    head = await off_loop(lambda: peek_sample(parse_object(body)), size_bytes=len(body))
    source = await _source(context, caller, head)
    name = ModelName.parse(source.base_model)
    served = context.models.get(name.base)
    for limit in (name.max_context, None if served is None else served.max_context):
        if limit is not None:
            head.check_context(limit)
    seq_id = None if head.sampling_session_id is None else head.seq_id  # it counts only within a sampling session
    submitted = await context.engine.sampling.submit(source, seq_id, body, num_samples=head.num_samples)
    return AcceptedResponse(request_id=submitted.request_id, sample_sequence_ids=list(submitted.sequence_ids))


async def _source(context: Context, caller: Caller, head: SampleHead) -> SamplerSource:
    if head.sampling_session_id is not None:
        return await context.source(head.sampling_session_id, caller, for_work=True)
    if head.model_path is None:
        base_model = head.base_model or ""
        context.model(base_model)
        return SamplerSource("", caller.user_id, base_model, None)
    row = (await _weights(context, caller, head.model_path)).row
    return SamplerSource("", caller.user_id, row.base_model, row.archive, row.seal)


async def _check_still_there(context: Context, checkpoint: CheckpointRow, archive: str | None) -> None:
    """A removal that looked for samplers before this one existed deletes the archive that it samples from."""
    if archive == checkpoint.archive and await context.catalog.checkpoints.get_save(checkpoint.save_id) is None:
        raise RowMissing(
            f"checkpoint {checkpoint.path!r} was deleted or replaced a moment ago; list those of its run, "
            f"and make another sampler"
        )


async def _weights(context: Context, caller: Caller, model_path: str) -> Latest:
    """The checkpoint, if its base model is served here."""
    found = await context.checkpoint(model_path, caller, kinds=(Kind.SAMPLER_WEIGHTS, Kind.WEIGHTS))
    context.model(found.row.base_model)
    return found
