"""Models: creates, describes and unloads runs."""

from __future__ import annotations

import secrets

from chockstone.api.config import ServerConfig
from chockstone.api.context import ContextDep
from chockstone.api.model_descriptions import ModelDescription
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep
from chockstone.backends.protocol import RunSpec
from chockstone.wire.messages.futures import AcceptedResponse
from chockstone.wire.messages.models import (
    CreateModelRequest,
    GetInfoRequest,
    GetInfoResponse,
    ModelData,
    OptimizerConfig,
    UnloadModelRequest,
)
from chockstone.wire.model_names import ModelName

routes = Routes(tags=["models"])


@routes.post("/create_model", summary="Create a run")
async def create_model(request: CreateModelRequest, context: ContextDep, caller: CallerDep) -> AcceptedResponse:
    session = await context.open_session(request.session_id, caller)
    context.model(request.base_model)
    lora = request.lora_config
    spec = RunSpec(
        rank=lora.rank,
        seed=secrets.randbits(31) if lora.seed is None else lora.seed,
        train_attn=lora.train_attn,
        train_mlp=lora.train_mlp,
        train_unembed=lora.train_unembed,
        optimizer=request.optimizer_config.type,
    )
    request_id = await context.engine.training.open(
        session.session_id,
        request.model_seq_id,
        owner=caller.user_id,
        base_model=request.base_model,
        spec=spec,
        optimizer=request.optimizer_config.model_dump(),
        user_metadata=request.user_metadata or {},
        project_id=session.project_id,
    )
    return AcceptedResponse(request_id=request_id, model_id=f"{session.session_id}:train:{request.model_seq_id}")


@routes.post("/get_info", summary="Describe a run")
async def get_info(request: GetInfoRequest, context: ContextDep, caller: CallerDep) -> GetInfoResponse:
    """Also of a parked run, which stays parked."""
    run = context.engine.runs.get(request.model_id)
    if run is not None and run.owner == caller.user_id:  # the catalog may not have its row yet
        context.engine.presence.saw_run(run.run_id)
        base_model, spec, optimizer = run.base_model, run.spec, run.optimizer
    else:
        row = await context.run_row(request.model_id, caller)
        base_model, spec, optimizer = row.base_model, row.spec, row.optimizer_config
    model = context.models.get(ModelName.parse(base_model).base)
    return GetInfoResponse(
        model_id=request.model_id,
        model_data=ModelData(
            arch=model.architecture if model else None,
            model_name=base_model,
            tokenizer_id=tokenizer_id(model, context.config) if model else None,
        ),
        optimizer_config=OptimizerConfig(**optimizer),
        is_lora=spec["rank"] > 0,
        lora_rank=spec["rank"],
        model_name=base_model,
    )


@routes.post("/unload_model", summary="Unload a run")
async def unload_model(request: UnloadModelRequest, context: ContextDep, caller: CallerDep) -> AcceptedResponse:
    run = await context.run(request.model_id, caller)
    return AcceptedResponse(request_id=await context.engine.training.close(run), model_id=run.run_id)


def tokenizer_id(model: ModelDescription, config: ServerConfig) -> str | None:
    """Where a client finds the tokenizer: on this machine, the model's directory; elsewhere, by the model's name.

    Clients cut it at the first colon, so a directory with one in its path is of no use to them.
    """
    directory = str(model.directory)
    return directory if config.is_local and ":" not in directory else None
