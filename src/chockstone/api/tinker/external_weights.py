"""External weights: imports adapters and full weights that were trained elsewhere.

The client begins an upload, sends each file to a signed URL, and finishes the upload, which commits a checkpoint.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
from functools import partial
from typing import IO, Annotated, Any, Final

from fastapi import HTTPException, Path, Request, Response

from chockstone.api.admission.uploads import STREAMED_ROUTES
from chockstone.api.context import ContextDep
from chockstone.api.routes import Routes
from chockstone.api.signed_urls import ForeignToken
from chockstone.api.users import CallerDep
from chockstone.backends.protocol import RunSpec
from chockstone.wire.failures import BadRequest
from chockstone.wire.messages.models import OptimizerConfig
from chockstone.wire.messages.weights import (
    ExternalWeightsUploadFinishRequest,
    ExternalWeightsUploadFinishResponse,
    ExternalWeightsUploadStartRequest,
    ExternalWeightsUploadStartResponse,
)

routes = Routes(tags=["weights"])
_FLUSH_BYTES: Final = 1 << 20
_FULL_DISK: Final = (errno.ENOSPC, errno.EDQUOT)
_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {  # Any: as FastAPI has it
    403: {"description": "The URL is not one that this server signed, or the API key that asked for it was revoked"},
    404: {"description": "The upload has expired, or was refused"},
    410: {"description": "The URL has expired"},
    413: {"description": "The file is larger than the base model allows"},
}


@routes.post("/external_weights_upload_start", summary="Begin an import of weights")
async def external_weights_upload_start(
    body: ExternalWeightsUploadStartRequest, request: Request, context: ContextDep, caller: CallerDep
) -> ExternalWeightsUploadStartResponse:
    """Of a LoRA adapter as PEFT writes it or, with rank 0, of all weights as ``model.safetensors``."""
    context.refuse_when_stopping()
    context.model(body.base_model)
    lora, optimizer = body.lora_config, OptimizerConfig()
    upload = await context.engine.imports.start(
        owner=caller.user_id,
        base_model=body.base_model,
        spec=RunSpec(
            rank=lora.rank,
            seed=secrets.randbits(31) if lora.seed is None else lora.seed,
            train_attn=lora.train_attn,
            train_mlp=lora.train_mlp,
            train_unembed=lora.train_unembed,
            optimizer=optimizer.type,
        ),
        optimizer=optimizer.model_dump(),
        project_id=body.destination_project_id,
        name=body.name,
    )
    sign = partial(context.signed_urls.sign, caller, expires_at=upload.expires_at)
    prefix = f"{context.base_url(request)}{STREAMED_ROUTES}"
    urls = {file: f"{prefix}{sign({'upload_id': upload.upload_id, 'file': file})}/{file}" for file in upload.files}
    return ExternalWeightsUploadStartResponse(upload_id=upload.upload_id, urls=urls, expires=upload.expires_at)


@routes.put("/uploads/{token}/{filename}", responses=_RESPONSES, summary="Send a file of an import")
async def put_file(
    token: str, filename: Annotated[str, Path(max_length=300)], request: Request, context: ContextDep
) -> Response:
    """The whole file as the body. The URL needs no credential."""
    signed = context.signed_urls.read(token, request)
    if "upload_id" not in signed or signed.get("file") != filename:
        raise ForeignToken  # signed for something else
    imports = context.engine.imports
    upload = await imports.find(signed["upload_id"], filename, owner=signed["user"])
    limit = upload.files[filename]
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPException(415, "files of imports are sent without Content-Encoding")
    if int(request.headers.get("content-length", "0")) > limit:  # the parser has checked that it has only digits
        raise _too_large(filename, limit)
    try:
        await imports.receive(upload, filename, partial(_fill, request, filename, limit))
    except OSError as error:
        if error.errno not in _FULL_DISK:
            raise
        raise BadRequest(f"the disk of this server is full, so {filename!r} was not kept", code="no_room") from error
    return Response()


@routes.post("/external_weights_upload_finish", summary="Finish an import of weights")
async def external_weights_upload_finish(
    body: ExternalWeightsUploadFinishRequest, context: ContextDep, caller: CallerDep
) -> ExternalWeightsUploadFinishResponse:
    """Check the files and commit a training checkpoint, from which runs can be created and sampled. Again is once."""
    context.refuse_when_stopping()
    found = await context.engine.imports.finish(body.upload_id, owner=caller.user_id)
    receipt = None if found.receipt is None else dict(found.receipt)
    return ExternalWeightsUploadFinishResponse(tinker_path=found.checkpoint.path, receipt=receipt)


async def _fill(request: Request, filename: str, limit: int, file: IO[bytes]) -> None:
    waiting, received = bytearray(), 0
    async for piece in request.stream():
        received += len(piece)
        if received > limit:
            raise _too_large(filename, limit)
        waiting += piece
        if len(waiting) >= _FLUSH_BYTES:
            await asyncio.to_thread(file.write, waiting)
            waiting = bytearray()
    await asyncio.to_thread(file.write, waiting)


def _too_large(filename: str, limit: int) -> HTTPException:
    return HTTPException(
        413, f"{filename!r} is larger than {limit} bytes, the most that the rank and this base model allow"
    )
