"""Tar headers: the exact bytes that stand before each member, and nothing else about tar.

Every member gets a PAX header whose ``comment`` record is as long as it takes for the payload to
start on a page. The bytes follow from (name, size, offset, mtime) alone, so a reader never parses
a header: it renders the one that must be there and compares.
"""

from __future__ import annotations

import re
from typing import Final

PAGE: Final = 4096  # payloads start on multiples of this; also the O_DIRECT unit
BLOCK: Final = 512  # tar's own unit
MAX_NAME_BYTES: Final = 1024
USTAR_NAME_BYTES: Final = 100
USTAR_MAX_SIZE: Final = 8 * 1024**3  # the octal size field ends here

_COMPONENT = re.compile(r"[A-Za-z0-9_.+=,@%-]{1,255}\Z")  # nothing that surprises a shell


def check_member_name(name: str) -> str | None:
    """Why ``name`` may not stand in an archive, or None if it may."""
    if not 0 < len(name) <= MAX_NAME_BYTES:
        return f"names have 1 to {MAX_NAME_BYTES} characters"
    for component in name.split("/"):
        if component in {".", ".."} or not _COMPONENT.match(component):
            return "names are relative, of a-z, A-Z, 0-9 and any of ._-+=,@% between slashes, and never '.' or '..'"
    return None


def round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def payload_offset(header_offset: int, *, name: str, size: int) -> int:
    """Where the payload starts when its headers start at ``header_offset``."""
    fixed = len(_records(name, size))
    smallest = header_offset + BLOCK + round_up(fixed + _COMMENT_MIN, BLOCK) + BLOCK
    return round_up(smallest, PAGE)


def render_headers(name: str, *, size: int, header_offset: int, mtime: int) -> bytes:
    """PAX header, its records and the ustar header: they end where the payload starts."""
    start = payload_offset(header_offset, name=name, size=size)
    records = _records(name, size)
    room = start - header_offset - 2 * BLOCK
    records += _comment(room - len(records))
    pax_name = "PaxHeader/" + name.rsplit("/", 1)[-1][: USTAR_NAME_BYTES - 10]
    pax = _ustar(pax_name, size=len(records), mtime=mtime, typeflag=b"x")
    shown_size = size if size < USTAR_MAX_SIZE else 0  # the PAX record overrides it
    return pax + records + _ustar(name[:USTAR_NAME_BYTES], size=shown_size, mtime=mtime, typeflag=b"0")


def describe_header(block: bytes) -> str:
    """What an unexpected 512-byte block looks like, for an error message."""
    if not block.strip(b"\0"):
        return "zeros"
    if block[257:262] != b"ustar":
        return "bytes that are no tar header"
    kinds = {
        b"0": "file", b"\0": "file", b"1": "hard link", b"2": "symbolic link", b"3": "character device",
        b"4": "block device", b"5": "directory", b"6": "fifo", b"x": "PAX header", b"g": "global PAX header",
        b"L": "GNU long name", b"K": "GNU long link", b"S": "sparse file",
    }  # fmt: skip
    name = block[:100].split(b"\0", 1)[0].decode("ascii", "backslashreplace")
    size = block[124:136].split(b"\0", 1)[0].decode("ascii", "backslashreplace")
    return f"a {kinds.get(block[156:157], 'member of unknown type')} named {name!r} of size {size!r} (octal)"


_COMMENT_MIN = len(b"NNNN comment=\n")


def _records(name: str, size: int) -> bytes:
    records = b""
    if len(name) > USTAR_NAME_BYTES:
        records += _record("path", name)
    if size >= USTAR_MAX_SIZE:
        records += _record("size", str(size))
    return records


def _record(key: str, value: str) -> bytes:
    body = f" {key}={value}\n"
    length = len(body)
    while len(str(length)) + len(body) != length:  # the length counts its own digits
        length = len(str(length)) + len(body)
    return f"{length}{body}".encode("ascii")


def _comment(length: int) -> bytes:
    """A record of exactly ``length`` bytes that says nothing."""
    return f"{length} comment=".encode("ascii").ljust(length - 1, b" ") + b"\n"


def _ustar(name: str, *, size: int, mtime: int, typeflag: bytes) -> bytes:
    header = bytearray(BLOCK)
    header[0 : len(name)] = name.encode("ascii")
    header[100:108] = b"0000644\0"
    header[108:116] = header[116:124] = b"0000000\0"
    header[124:136] = b"%011o\0" % size
    header[136:148] = b"%011o\0" % mtime
    header[148:156] = b" " * 8
    header[156:157] = typeflag
    header[257:265] = b"ustar\x0000"
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)
