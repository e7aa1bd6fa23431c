"""Downloads against a server that breaks off, changes its mind and forgets its URLs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import DamagedArchive
from chockstone.cli.remote import download as module
from chockstone.cli.remote.client import NotThere, ServerUnreachable
from chockstone.cli.remote.download import TargetTaken, download


@dataclass
class Site:
    """What is offered, and what goes wrong: ``cuts`` are the bytes after which each answer breaks off."""

    content: bytes
    tag: str | None = '"one"'
    cuts: list[int] = field(default_factory=list)
    after_cut: Callable[[Site], None] = lambda _: None
    is_gone: bool = False
    generation: int = 0  # of URLs: those signed before are refused
    url: str = ""
    asked: list[str | None] = field(default_factory=list)  # the ranges, without the first look

    def sign(self) -> str:
        if self.is_gone:
            raise NotThere("it was deleted")
        return f"{self.url}/{self.generation}"


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site, asked = self.site, self.headers["Range"]
        if self.path != f"/{site.generation}" or site.is_gone:
            self.send_error(410)
            return
        content, tag = site.content, site.tag
        is_look = asked == "bytes=0-0"
        if not is_look:
            site.asked.append(asked)
        if asked is None or tag is None or self.headers["If-Range"] not in (None, tag):
            self.send_response(200)
            start, end = 0, len(content)
        else:
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            end = 1 if is_look else len(content)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(end - start))
        if tag is not None:
            self.send_header("ETag", tag)
        self.end_headers()
        if not is_look and site.cuts:
            cut = site.cuts.pop(0)
            site.after_cut(site)
            self.wfile.write(content[start : start + cut])
            return
        self.wfile.write(content[start:end])

    def log_message(self, *_: object) -> None:
        pass


def make_archive(directory: Path, value: int) -> bytes:
    with Checkpointer(directory) as checkpointer:
        checkpointer.save({"w": np.full(50_000, value, dtype=np.int32)}, name="one")
    return (directory / "one.tar").read_bytes()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    site = Site(make_archive(tmp_path / "store", 1))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": site}))
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here/one.tar"


def test_a_broken_connection_is_taken_up_where_it_broke(site: Site, target: Path) -> None:
    site.cuts = [70_000, 0, 60_001]

    size = download(site.sign, target, label="one")

    assert size == len(site.content)
    assert target.read_bytes() == site.content
    assert site.asked == ["bytes=0-", "bytes=70000-", "bytes=70000-", "bytes=130001-"]
    assert os.listdir(target.parent) == ["one.tar"]


def test_another_command_goes_on_from_what_is_there(site: Site, target: Path) -> None:
    site.cuts = [70_000, *[0] * 20]
    with pytest.raises(ServerUnreachable, match="broke off after 70,000 of .* Run the command again"):
        download(site.sign, target, label="one")
    assert not target.exists()
    site.cuts, site.asked = [], []

    download(site.sign, target, label="one")

    assert site.asked == ["bytes=70000-"]
    assert target.read_bytes() == site.content


def test_nothing_is_put_together_from_two_versions(site: Site, target: Path, tmp_path: Path) -> None:
    def replace(changed: Site) -> None:
        changed.content, changed.tag = make_archive(tmp_path / "other", 2), '"two"'

    site.cuts, site.after_cut = [70_000], replace

    download(site.sign, target, label="one")

    assert site.tag == '"two"'
    assert target.read_bytes() == site.content
    assert os.listdir(target.parent) == ["one.tar"]


def test_a_part_of_another_version_is_not_gone_on_with(site: Site, target: Path, tmp_path: Path) -> None:
    site.cuts = [70_000, *[0] * 20]
    with pytest.raises(ServerUnreachable):
        download(site.sign, target, label="one")
    site.cuts, site.content, site.tag = [], make_archive(tmp_path / "other", 2), '"two"'

    download(site.sign, target, label="one")

    assert target.read_bytes() == site.content
    assert os.listdir(target.parent) == ["one.tar"]


def test_an_expired_url_is_signed_anew(site: Site, target: Path) -> None:
    def expire(changed: Site) -> None:
        changed.generation += 1

    site.cuts, site.after_cut = [70_000], expire

    download(site.sign, target, label="one")

    assert target.read_bytes() == site.content


def test_what_was_deleted_meanwhile_is_told(site: Site, target: Path) -> None:
    def remove(changed: Site) -> None:
        changed.is_gone = True

    site.cuts, site.after_cut = [70_000], remove

    with pytest.raises(NotThere, match="it was deleted"):
        download(site.sign, target, label="one")
    assert not target.exists()


def test_a_server_without_ranges_is_read_from_the_start(site: Site, target: Path) -> None:
    site.tag, site.cuts = None, [70_000]

    download(site.sign, target, label="one")

    assert target.read_bytes() == site.content


def test_damage_on_the_way_is_found(site: Site, target: Path) -> None:
    content = bytearray(site.content)
    content[100_000] ^= 1
    site.content = bytes(content)

    with pytest.raises(DamagedArchive):
        download(site.sign, target, label="one")
    assert os.listdir(target.parent) == []


def test_a_file_that_is_there_is_left_alone(site: Site, target: Path) -> None:
    target.write_text("mine")

    with pytest.raises(TargetTaken, match="exists already"):
        download(site.sign, target, label="one")
    assert target.read_text() == "mine"


def test_two_downloads_do_not_write_one_file(site: Site, target: Path) -> None:
    complaints: list[str] = []

    def compete(_: Site) -> None:
        with pytest.raises(TargetTaken) as caught:
            download(site.sign, target, label="one")
        complaints.append(str(caught.value))

    site.cuts, site.after_cut = [70_000], compete

    download(site.sign, target, label="one")

    assert "another download is writing" in complaints[0]
    assert target.read_bytes() == site.content
