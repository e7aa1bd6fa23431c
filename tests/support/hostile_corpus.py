"""The corpus of hostile files: each one's name, how it is made, and how it must be refused."""

from __future__ import annotations

import gzip
import json
import struct
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chockstone.checkpoints.errors import (
    CheckpointError,
    DamagedArchive,
    ForeignArchive,
    TruncatedArchive,
    UncommittedArchive,
    UnsupportedArchive,
)
from chockstone.checkpoints.format.tar import PAGE
from support.hostile_archives import (
    GOOD_STATE,
    MEBIBYTE,
    REFERENCE,
    Document,
    deep,
    forge,
    header_loop,
    manifest_alone,
    many_folders,
    never_finished,
    other_tar,
    pad_manifest,
    swapped_commit,
    tensor_entry,
    tensor_file,
    with_header,
    with_manifest,
    with_manifest_size,
    with_members,
    with_names,
    with_node,
    with_state,
    with_tensors,
    without,
    zip_archive,
)


@dataclass(frozen=True)
class Hostile:
    """One file of the corpus, and how it must be refused."""

    name: str
    build: Callable[[], bytes]
    error: type[CheckpointError]
    says: str  # a regular expression: the message names the problem
    peak_bytes: int = 8 * MEBIBYTE  # of Python memory, while it is looked at


@dataclass
class _Corpus:
    files: list[Hostile] = field(default_factory=list)

    def add(self, name: str, build: Callable[[], bytes], error: type[CheckpointError], says: str, **more: Any) -> None:
        self.files.append(Hostile(name, build, error, says, **more))


def corpus() -> list[Hostile]:
    """Every hostile file, none built yet."""
    found = _Corpus()
    _names(found)
    _tar_headers(found)
    _manifests(found)
    _seals(found)
    _strangers(found)
    _tensor_files(found)
    _states(found)
    _bombs(found)
    return found.files


def _names(found: _Corpus) -> None:
    for name, label in {
        "../evil": "parent",
        "a/../../evil": "parent-inside",
        "..": "dots",
        "./a": "dot",
        "a/.": "dot-last",
        "/etc/cron.d/evil": "absolute",
        "//evil": "double-slash",
        "a//b": "empty-component",
        "a/": "folder",
        "C:/evil": "drive",
        "a\\..\\evil": "backslash",
        "a\0b": "nul",
        "a\nb": "newline",
        "a b": "space",
        "~/evil": "tilde",
        "star*": "star",
        "caf\u00e9": "not-ascii",
        "\u202egpj.exe": "right-to-left",
        "x" * 256: "long-component",
        "/".join(["x" * 200] * 6): "long",
        "": "empty",
    }.items():
        found.add(
            f"name-{label}", _named(name), DamagedArchive, r"manifest.json .*member name .*names (are relative|have 1)"
        )
    twice = r"appears twice, is reserved, or differs from another only in case"
    found.add("member-twice", lambda: with_names("a", "b", "a"), DamagedArchive, f"member 'a' {twice}")
    found.add("member-twice-in-other-case", lambda: with_names("Model.bin", "mODEL.bin"), DamagedArchive, twice)
    found.add("member-named-manifest", lambda: with_names("manifest.json"), DamagedArchive, twice)
    found.add("member-named-commit", lambda: with_names("commit"), DamagedArchive, twice)
    folder = r"member 'a' is also the folder of another member"
    found.add("file-then-folder", lambda: with_names("a", "a/b"), DamagedArchive, folder)
    found.add("folder-then-file", lambda: with_names("a/b/c", "A"), DamagedArchive, folder)
    found.add("commit-as-folder", lambda: with_names("COMMIT/x"), DamagedArchive, "member 'commit' is also the folder")


def _named(name: str) -> Callable[[], bytes]:
    """Render a name tar headers have no room or letters for as far as they have."""

    def build() -> bytes:
        def edit(document: Document) -> None:
            document["members"][0]["name"] = name

        return forge([("stand-in", b"x")], edit=edit)

    return build


def _tar_headers(found: _Corpus) -> None:
    instead = r"instead of the header of member 'state.json' of \d+ bytes there is .*"
    for label, kind, words in [
        ("hard-link", b"1", "a hard link named"),
        ("symbolic-link", b"2", "a symbolic link named"),
        ("character-device", b"3", "a character device named"),
        ("block-device", b"4", "a block device named"),
        ("directory", b"5", "a directory named"),
        ("fifo", b"6", "a fifo named"),
        ("sparse", b"S", "a sparse file named"),
        ("global-header", b"g", "a global PAX header named"),
        ("unknown-type", b"Z", "a member of unknown type named"),
    ]:
        found.add(
            f"header-{label}",
            _header(type=kind, link=b"/etc/passwd\0", device=b"0000001\0"),
            DamagedArchive,
            instead + words,
        )
    found.add("header-traversal", _header(name=b"../../evil\0"), DamagedArchive, instead + r"named '\.\./\.\./evil'")
    found.add("header-setuid", _header(mode=b"0004755\0"), DamagedArchive, instead + "a file named 'state.json'")
    found.add("header-huge-size", _header(size=b"77777777777\0"), DamagedArchive, instead + "of size '77777777777'")
    found.add("header-binary-size", _header(size=b"\x80" + b"\xff" * 11), DamagedArchive, instead + "of size ")
    found.add("header-loop", header_loop, DamagedArchive, r"there is a PAX header named")
    for label, size, says in [
        ("negative", b"-0000000001\0", "claims -1 bytes"),
        ("zero", b"00000000000\0", "claims 0 bytes"),
        ("huge", b"77777777777\0", "claims 8589934591 bytes"),
        ("over-limit", b"00100000001\0", "claims 16777217 bytes"),
        ("binary", b"\x80" + b"\xff" * 11, "is not a number"),
        ("words", b"elephants\0\0\0", "is not a number"),
    ]:
        found.add(
            f"manifest-size-{label}", _manifest_size(size), DamagedArchive, f"manifest.json {says}|size of .* {says}"
        )
    found.add(
        "manifest-size-beyond-the-end",
        _manifest_size(b"00077777777\0"),
        TruncatedArchive,
        r"claims 16777215 bytes and the archive ends after",
    )
    found.add(
        "manifest-size-odd",
        _manifest_size(b"00000010001\0"),
        DamagedArchive,
        "not a whole number of pages|not valid JSON",
    )


def _header(**fields: bytes) -> Callable[[], bytes]:
    return lambda: with_header(**fields)


def _manifest_size(size: bytes) -> Callable[[], bytes]:
    return lambda: with_manifest_size(size)


def _manifests(found: _Corpus) -> None:
    sense = "manifest.json does not make sense: "
    impossible = "impossible block size of "

    def fields(label: str, says: str, error: type[CheckpointError] = DamagedArchive, **changed: object) -> None:
        found.add(f"manifest-{label}", lambda: with_manifest(**changed), error, says)

    for size in (
        0,
        -1,
        1,
        1024,
        4096,
        2 * MEBIBYTE,
        2**63,
        10**40,
        1.5,
        float(MEBIBYTE),
        True,
        None,
        "1048576",
        [MEBIBYTE],
    ):
        fields(f"block-bytes-{size!r:.24}", impossible, block_bytes=size)
    digests = r"does not hold one digest for each of \d+ blocks"
    for label, blocks in {
        "none": "",
        "missing": None,
        "too-many": "00" * 32,
        "short": "00" * 15,
        "a-list": ["00" * 16],
        "upper-case": "AB" * 16,
        "not-hex": "zz" * 16,
        "unicode-digits": "\u0660" * 32,
        "million": "00" * 4 * MEBIBYTE,
    }.items():
        more = {"peak_bytes": 64 * MEBIBYTE} if label == "million" else {}
        found.add(f"manifest-digests-{label}", _fields(blocks=blocks), DamagedArchive, digests, **more)
    fields("digest-unknown", "unknown digest 'md5'", UnsupportedArchive, digest="md5")
    fields("version-newer", "format version .?2.? and this Chockstone reads version 1", UnsupportedArchive, version=2)
    fields("version-text", "format version .*1", UnsupportedArchive, version="1")
    fields("version-none", "format version .?None", UnsupportedArchive, version=None)
    fields("format-other", "not that of a Chockstone archive", ForeignArchive, format="parachute-archive")
    fields("kind-path", sense + ".*kind '../x'", kind="../x")
    fields("kind-number", sense + ".*expected str, found int", kind=7)
    fields("step-negative", sense + ".*step -1", step=-1)
    fields("step-huge", sense + ".*step", step=2**63)
    fields("step-bool", sense + ".*expected int, found bool", step=True)
    fields("step-float", sense + ".*expected int, found float", step=1.0)
    fields("pinned-number", sense + ".*expected bool, found int", pinned=1)
    for label, moment in {
        "nonsense": "yesterday",
        "naive": "2026-03-01T12:00:00",
        "before-1970": "1969-12-31T23:59:59+00:00",
        "year-one": "0001-01-01T00:00:00+23:59",
        "year-9999": "9999-12-31T23:59:59-23:59",
        "number": 0,
        "none": None,
    }.items():
        fields(f"created-{label}", sense, created_at=moment)
    for label, ttl in {
        "zero": 0,
        "negative": -1,
        "nan": float("nan"),
        "inf": float("inf"),
        "huge": 10**400,
        "list": [1],
    }.items():
        fields(f"ttl-{label}", sense, ttl_seconds=ttl)
    for label, value in {"list": [1], "none": None, "huge": 10**400, "words": "lots"}.items():
        fields(f"metric-{label}", sense, metrics={"loss": value})
    fields("metrics-list", sense + ".*wrong type", metrics=[])
    fields("metadata-list", sense + ".*wrong type", metadata=[])
    fields("members-object", sense + ".*wrong type", members={"state.json": 2})
    for label, member in {
        "number": 7,
        "null": None,
        "list": ["state.json", 2],
        "without-name": {"size": 2},
        "without-size": {"name": "a"},
        "size-text": {"name": "a", "size": "2"},
        "size-float": {"name": "a", "size": 2.0},
        "size-bool": {"name": "a", "size": True},
        "name-number": {"name": 1, "size": 2},
        "size-negative": {"name": "a", "size": -1},
        "size-over-limit": {"name": "a", "size": 2**60 + 1},
    }.items():
        found.add(f"member-{label}", _members(member), DamagedArchive, sense)
    for label, changed in {
        "member-size": {"members": [{"name": "a", "size": 10**4200}]},
        "step": {"step": 10**4200},
        "kind": {"kind": "k" * MEBIBYTE},
        "created-at": {"created_at": "k" * MEBIBYTE},
    }.items():
        found.add(f"long-winded-{label}", _fields(**changed), DamagedArchive, sense)
    found.add("long-winded-block-bytes", _fields(block_bytes="k" * MEBIBYTE), DamagedArchive, impossible)
    for key in ("version", "digest"):
        found.add(
            f"long-winded-{key}",
            _fields(**{key: "k" * MEBIBYTE}),
            UnsupportedArchive,
            f"{key} .*kkk",
        )
    for size in (2**60, 2**50, 2**40):
        found.add(
            f"member-size-{size}",
            _members({"name": "state.json", "size": size}),
            DamagedArchive,
            impossible + "|digest for each|bytes",
        )
    found.add(
        "member-size-one-more",
        _members({"name": "state.json", "size": 3}),
        DamagedArchive,
        "header of member 'state.json' of 3 bytes",
    )
    found.add(
        "member-size-a-page-more",
        _members({"name": "state.json", "size": 4098}),
        TruncatedArchive,
        r"the archive has \d+ bytes and not \d+",
    )
    found.add(
        "members-too-many",
        _members(*({"name": f"m{i}", "size": 0} for i in range(10_001))),
        DamagedArchive,
        "10001 members; an archive holds at most 10000",
        peak_bytes=24 * MEBIBYTE,
    )
    for key in ("kind", "step", "created_at", "members", "metrics", "metadata", "pinned", "ttl_seconds"):
        found.add(f"manifest-without-{key}", _without(key), DamagedArchive, sense + f"KeyError: '{key}'")
    found.add("manifest-without-blocks", _without("blocks"), DamagedArchive, digests)
    found.add("manifest-without-block-bytes", _without("block_bytes"), DamagedArchive, impossible)
    found.add("manifest-without-format", _without("format"), ForeignArchive, "not that of a Chockstone archive")
    for label, text in {
        "empty": b"",
        "list": b"[]",
        "null": b"null",
        "string": b'"chockstone-archive"',
        "cut": b'{"format": "chock',
        "latin-1": b'{"format": "chockst\xf6ne"}',
        "bom": b'\xef\xbb\xbf{"format": "chockstone-archive"}',
        "two": b'{"format": "chockstone-archive"} {}',
        "comment": b"// hello\n{}",
    }.items():
        error = ForeignArchive if label in {"list", "null", "string"} else DamagedArchive
        found.add(f"manifest-json-{label}", _raw_manifest(text), error, "not that of|not valid JSON")


def _fields(**changed: object) -> Callable[[], bytes]:
    return lambda: with_manifest(**changed)


def _members(*members: object) -> Callable[[], bytes]:
    return lambda: with_members(*members)


def _without(key: str) -> Callable[[], bytes]:
    return lambda: without(key)


def _raw_manifest(text: bytes) -> Callable[[], bytes]:
    return lambda: forge([("state.json", b"{}")], encode=lambda _: pad_manifest(text))


def _seals(found: _Corpus) -> None:
    found.add("never-finished", never_finished, UncommittedArchive, "no COMMIT member: its write was never finished")
    found.add("commit-of-another", swapped_commit, UncommittedArchive, "COMMIT does not seal this manifest")
    found.add(
        "newer-version-not-sealed", _unsealed_version, UncommittedArchive, "changed after the write.*format version .?9"
    )


def _unsealed_version() -> bytes:
    content = with_state(GOOD_STATE)
    assert content.count(b'"version": 1') == 1
    return content.replace(b'"version": 1', b'"version": 9')


def _strangers(found: _Corpus) -> None:
    """Files that are not ours at all."""
    stranger = "this is no Chockstone archive: its first member is "
    link = tarfile.TarInfo("manifest.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    plain = tarfile.TarInfo("README.md")
    for label, build in {
        "zeros": lambda: bytes(16 * PAGE),
        "text": lambda: b"hello world\n" * 4096,
        "zip": zip_archive,
        "gzip": lambda: gzip.compress(bytes(range(256)) * 64, compresslevel=0),
        "tar": lambda: other_tar(plain, contents=[b"hi"]),
        "tar-with-a-link": lambda: other_tar(link),
        "safetensors": lambda: tensor_file({}, b"").ljust(16 * PAGE),
        "png": lambda: b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 256,
        "elf": lambda: b"\x7fELF" + bytes(16 * PAGE),
    }.items():
        found.add(f"stranger-{label}", build, ForeignArchive, stranger)
    found.add("stranger-empty", lambda: b"", TruncatedArchive, "0 bytes are too few for an archive")
    found.add("stranger-short", lambda: b"hi", TruncatedArchive, "2 bytes are too few for an archive")
    found.add(
        "stranger-manifest",
        manifest_alone,
        UncommittedArchive,
        "never finished: manifest.json is not that of a Chockstone",
    )


def _tensor_files(found: _Corpus) -> None:
    """Safetensors members that lie. ``w`` is what state.json asks for."""
    f32 = tensor_entry("F32", [2], 0, 8)

    def header(label: str, says: str, header: object, data: bytes = bytes(8), **more: Any) -> None:
        found.add(f"tensors-{label}", lambda: with_tensors(tensor_file(header, data)), DamagedArchive, says, **more)

    disjoint = "tensors in 'model.safetensors' overlap or leave a hole at data offset "
    header("overlap", disjoint + "8", {"w": f32, "v": tensor_entry("F32", [2], 4, 12)}, bytes(12))
    header("same-place", disjoint + "8", {"w": f32, "v": f32})
    header("hole", disjoint + "8", {"w": f32, "v": tensor_entry("U8", [1], 9, 10)}, bytes(10))
    header("hole-first", disjoint + "0", {"w": tensor_entry("F32", [2], 4, 12)}, bytes(12))
    end = r"tensors in 'model.safetensors' end at \d+ of \d+ bytes"
    header("past-the-end", end, {"w": tensor_entry("F32", [4], 0, 16)})
    header("far-past-the-end", end, {"w": tensor_entry("F32", [2**58], 0, 2**60)})
    header("bytes-left-over", end, {"w": f32}, bytes(9))
    header("no-tensors-but-bytes", end, {})
    wrong = "tensor 'w' in 'model.safetensors' is described wrongly"
    header("overflow", wrong, {"w": tensor_entry("F32", [2**62], 0, 2**64)})
    for label, entry in {
        "shape-too-small": tensor_entry("F32", [1], 0, 8),
        "shape-too-large": tensor_entry("F32", [3], 0, 8),
        "shape-negative": tensor_entry("F32", [-1, -2], 0, 8),
        "shape-float": tensor_entry("F32", [2.0], 0, 8),
        "shape-bool": tensor_entry("F32", [True, 2], 0, 8),
        "shape-text": {**f32, "shape": "2"},
        "shape-null": {**f32, "shape": None},
        "shape-wraps": tensor_entry("F32", [2**62 + 1, 2], 0, 8),
        "shape-of-lists": tensor_entry("F32", [[2]], 0, 8),
        "shape-bignum": tensor_entry("F32", [10**4000] * 64, 0, 8),
        "offsets-backwards": tensor_entry("F32", [2], 8, 0),
        "offsets-negative": tensor_entry("F32", [2], -8, 0),
        "offsets-float": tensor_entry("F32", [2], 0, 8.0),
        "offsets-three": {**f32, "data_offsets": [0, 4, 8]},
        "offsets-text": {**f32, "data_offsets": "08"},
        "offsets-missing": {"dtype": "F32", "shape": [2]},
        "dtype-unknown": tensor_entry("F99", [2], 0, 8),
        "dtype-lower": tensor_entry("f32", [2], 0, 8),
        "dtype-list": {**f32, "dtype": ["F32"]},
        "dtype-missing": {"shape": [2], "data_offsets": [0, 8]},
        "entry-list": [],
        "entry-number": 8,
        "entry-text": "F32",
        "entry-null": None,
    }.items():
        header(label, wrong, {"w": entry})
    header("shape-65-deep", wrong, {"w": tensor_entry("F32", [1] * 64 + [2], 0, 8)})
    header("header-list", "is not a JSON object", [f32])
    header("header-not-json", "is not valid JSON", b"{'w': 1}", peak_bytes=8 * MEBIBYTE)
    header("header-deep", "is not valid JSON: RecursionError", deep(100_000, opening=b'{"w":', closing=b"}", core=b"1"))
    claims = r"member 'model.safetensors' claims a header of \d+ bytes in \d+"
    for label, length in {"one-more": 9, "huge": 2**64 - 1, "over-limit": 100_000_001}.items():
        found.add(f"tensors-header-{label}", _raw_tensors(struct.pack("<Q", length) + bytes(8)), DamagedArchive, claims)
    found.add("tensors-no-header", _raw_tensors(b""), DamagedArchive, claims)
    found.add("tensors-half-a-length", _raw_tensors(b"\1\0\0"), DamagedArchive, claims)
    found.add("tensors-header-of-nothing", _raw_tensors(bytes(8)), DamagedArchive, "is not valid JSON")
    found.add("tensors-pickle", _raw_tensors(b"\x80\x04\x95cos\nsystem\n."), DamagedArchive, claims)


def _raw_tensors(content: bytes) -> Callable[[], bytes]:
    return lambda: with_tensors(content)


_SIZED = "state.json describes tensor 'w' .*wrongly|state.json does not make sense"
_SENSELESS = "state.json does not make sense: "


def _states(found: _Corpus) -> None:
    """state.json that lies about itself or about the tensors."""

    def node(label: str, says: str, node: object, **more: Any) -> None:
        found.add(f"state-{label}", lambda: with_node(node), DamagedArchive, says, **more)

    node("no-such-member", r"speaks of a member 'ghost.safetensors' that is not there", {**REFERENCE, "group": "ghost"})
    node("member-outside", r"member '\.\./\.\./x.safetensors' that is not there", {**REFERENCE, "group": "../../x"})
    node(
        "no-such-tensor",
        r"speaks of a tensor 'ghost' that is not in 'model.safetensors'",
        {**REFERENCE, "key": "ghost"},
    )
    node("metadata-as-tensor", r"speaks of a tensor '__metadata__'", {**REFERENCE, "key": "__metadata__"})
    node("reference-without-group", _SENSELESS + "KeyError", {"$": "tensor", "key": "w"})
    node("reference-without-key", _SENSELESS + "KeyError", {"$": "tensor", "group": "model"})
    for label, lie in {
        "dtype-wider": {"dtype": "F64", "shape": [2]},
        "dtype-unknown": {"dtype": "PICKLE", "shape": [2]},
        "shape-larger": {"dtype": "F32", "shape": [3]},
        "shape-negative": {"dtype": "F32", "shape": [-1, -2]},
        "shape-wraps": {"dtype": "F32", "shape": [2**62 + 1, 2]},
        "dtype-alone": {"dtype": "C128"},
    }.items():
        node(label, _SIZED, {**REFERENCE, **lie})
    node(
        "numpy-c32",
        "calls tensor 'w' of 'model.safetensors' a numpy C32",
        {**REFERENCE, "dtype": "C32", "shape": [2], "as": "numpy"},
    )
    refused = f"{_SENSELESS}|{_SIZED}"
    node("dtype-list", refused, {**REFERENCE, "dtype": ["F32"]})
    node("dtype-object", refused, {**REFERENCE, "dtype": {"a": 1}})
    node("dtype-number", refused, {**REFERENCE, "dtype": 32})
    node("form-list", refused, {**REFERENCE, "as": ["torch"]})
    node("form-unknown", refused, {**REFERENCE, "as": "pickle"})
    node(
        "scalar-of-two",
        refused,
        {**REFERENCE, "as": "numpy.scalar"},
    )
    node("shape-of-65", refused, {**REFERENCE, "dtype": "F32", "shape": [1] * 64 + [2], "as": "numpy"})
    node(
        "shape-infinite",
        refused,
        {**REFERENCE, "shape": [float("inf")]},
    )
    node("shape-nan", refused, {**REFERENCE, "shape": [float("nan")]})
    node("shape-text", refused, {**REFERENCE, "shape": "x"})
    node("shape-number", refused, {**REFERENCE, "shape": 2})
    for label, shape, form in [
        ("torch-2-63", [0, 2**63], "torch"),
        ("torch-wraps", [0, 2**40, 2**40], "torch"),
        ("numpy-2-63", [0, 2**63], "numpy"),
        ("numpy-wraps", [0, 2**40, 2**40], "numpy"),
        ("torch-bignum", [0, 10**30], "torch"),
    ]:
        found.add(f"state-empty-{label}", _empty(shape, form), DamagedArchive, "described wrongly|" + refused)
    found.add(
        "state-scalar-of-none",
        _empty([0], "numpy.scalar"),
        DamagedArchive,
        refused,
    )
    for label, holder in {
        "set": {"$": "set", "items": [REFERENCE]},
        "deep-in-a-set": {"$": "frozenset", "items": [{"$": "tuple", "items": [REFERENCE]}]},
        "key": {"$": "dict", "items": [[REFERENCE, 1]]},
    }.items():
        node(f"tensor-in-a-{label}", _SENSELESS, holder)
    node("float-bignum", _SENSELESS, {"$": "float", "value": 10**400})
    node("complex-bignum", _SENSELESS, {"$": "complex", "parts": [10**400, 0]})
    for label, bad in {
        "tag-unknown": {"$": "pickle", "data": "gASV"},
        "tag-list": {"$": []},
        "tag-null": {"$": None},
        "tag-object": {"$": {}},
        "tuple-without-items": {"$": "tuple"},
        "tuple-of-null": {"$": "tuple", "items": None},
        "tuple-of-number": {"$": "tuple", "items": 3},
        "set-of-lists": {"$": "set", "items": [[1]]},
        "dict-of-triples": {"$": "dict", "items": [[1, 2, 3]]},
        "dict-of-numbers": {"$": "dict", "items": [1]},
        "dict-with-list-key": {"$": "dict", "items": [[[1], 2]]},
        "int-not-hex": {"$": "int", "hex": "0xzz"},
        "int-number": {"$": "int", "hex": 3},
        "float-words": {"$": "float", "value": "lots"},
        "float-list": {"$": "float", "value": [1]},
        "complex-of-three": {"$": "complex", "parts": [1, 2, 3]},
        "complex-of-words": {"$": "complex", "parts": ["a", "b"]},
        "bytes-not-base64": {"$": "bytes", "base64": "a*"},
        "bytes-number": {"$": "bytes", "base64": 7},
        "bytes-not-ascii": {"$": "bytes", "base64": "\u00e9"},
        "size-of-words": {"$": "torch.Size", "items": ["a"]},
        "dtype-function": {"$": "torch.dtype", "name": "load"},
        "dtype-module": {"$": "torch.dtype", "name": "os.system"},
        "device-unknown": {"$": "torch.device", "name": "banana"},
        "device-list": {"$": "torch.device", "name": ["cpu"]},
    }.items():
        node(label, _SENSELESS, bad)
    for label, text in {"empty": b"", "cut": b'{"model": ', "not-utf-8": b'{"\xff": 1}'}.items():
        found.add(
            f"state-json-{label}", lambda text=text: with_state(text), DamagedArchive, "state.json is not valid JSON"
        )
    found.add("state-missing", lambda: forge([("config.json", b"{}")]), ForeignArchive, "has no member 'state.json'")


def _empty(shape: list[int], form: str) -> Callable[[], bytes]:
    """A reference to a tensor of no bytes whose shape nobody can allocate."""
    header = {"w": tensor_entry("F32", shape, 0, 0)}
    state = {"model": {"w": {**REFERENCE, "as": form}}}
    return lambda: forge([("state.json", json.dumps(state).encode()), ("model.safetensors", tensor_file(header, b""))])


def _bombs(found: _Corpus) -> None:
    """JSON that costs more than it weighs."""
    for label, text in {
        "lists": deep(100_000),
        "objects": deep(100_000, opening=b'{"a":', closing=b"}", core=b"1"),
    }.items():
        found.add(
            f"bomb-deep-{label}-in-manifest",
            _raw_manifest(text),
            DamagedArchive,
            "manifest.json is not valid JSON: RecursionError",
        )
        found.add(
            f"bomb-deep-{label}-in-state",
            lambda text=text: with_state(text),
            DamagedArchive,
            "state.json is not valid JSON: RecursionError",
        )
    digits = b"9" * 1_000_000
    found.add(
        "bomb-digits-in-manifest",
        _raw_manifest(b'{"step": ' + digits + b"}"),
        DamagedArchive,
        "manifest.json is not valid JSON: ValueError",
    )
    found.add(
        "bomb-digits-in-state",
        lambda: with_state(b'{"a": ' + digits + b"}"),
        DamagedArchive,
        "state.json is not valid JSON: ValueError",
    )
    found.add(
        "bomb-digits-in-tensors",
        _raw_tensors(tensor_file(b'{"w": ' + digits + b"}", b"")),
        DamagedArchive,
        "is not valid JSON: ValueError",
    )
    found.add(
        "bomb-string-in-tag",
        lambda: with_node({"$": "t" * 4 * MEBIBYTE}),
        DamagedArchive,
        "unknown type 'ttt",
        peak_bytes=64 * MEBIBYTE,
    )
    found.add(
        "bomb-string-in-key",
        _raw_tensors(tensor_file({"w" * MEBIBYTE: 1}, b"")),
        DamagedArchive,
        "described wrongly",
        peak_bytes=32 * MEBIBYTE,
    )
    found.add(
        "bomb-folders",
        lambda: many_folders(400),
        DamagedArchive,
        "digest for each|impossible block size|deep",
        peak_bytes=32 * MEBIBYTE,
    )
