"""Compression: one zstd frame, unpacked within a limit.

The frame must say how large its content is. That is held against the limit before anything is
unpacked, and against the content while it is.
"""

from __future__ import annotations

import zstandard

from chockstone.wire.failures import BadRequest


def unpacked_bytes(body: bytes, limit_bytes: int) -> int:
    """How large the frame in ``body`` says its content is. Raises BadRequest if that is more than ``limit_bytes``."""
    try:
        frame = zstandard.get_frame_parameters(body)
    except zstandard.ZstdError as error:
        raise BadRequest(f"the body of {len(body)} bytes is not zstd as its encoding says: {error}.") from error
    if frame.content_size == zstandard.CONTENTSIZE_UNKNOWN:
        raise BadRequest("the zstd frame does not say how large its content is. Compress the body in one piece.")
    if not frame.content_size:
        raise BadRequest(f"the zstd body of {len(body)} bytes has no content.")
    if frame.content_size > limit_bytes:
        raise BadRequest(
            f"the body unpacks to {frame.content_size} bytes, more than the {limit_bytes} that one request may have. "
            f"Send fewer datums per request."
        )
    return frame.content_size


def decompress(body: bytes, limit_bytes: int) -> bytes:
    """The content of ``body``, a single whole frame of at most ``limit_bytes``, in a buffer of just its size."""
    size_bytes = unpacked_bytes(body, limit_bytes)
    try:
        content = zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadRequest(f"the zstd body of {len(body)} bytes is damaged or not a single frame: {error}.") from error
    if len(content) != size_bytes:
        raise BadRequest(f"the zstd body unpacks to {len(content)} bytes, not to the {size_bytes} it claims.")
    return content
