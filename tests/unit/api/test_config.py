from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.api.config import ServerConfig
from support.api.server_configs import default_config


def config(**facts: object) -> ServerConfig:
    return default_config(Path("/data"), **facts)


def test_everything_is_in_the_data_directory_unless_said_otherwise() -> None:
    assert config().database_url == "sqlite:////data/catalog.sqlite3"
    assert config().store_url == "/data/checkpoints"
    assert config().adapters == Path("/data/vllm-adapters")
    elsewhere = config(database="postgresql://db/c", store="s3://bucket/p", vllm_adapters=Path("/shared"))
    assert elsewhere.database_url == "postgresql://db/c"
    assert elsewhere.store_url == "s3://bucket/p"
    assert elsewhere.adapters == Path("/shared")


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("LocalHost", True), ("::1", True), ("0.0.0.0", False), ("models.example.com", False)],
)
def test_a_loopback_host_is_local(host: str, is_local: bool) -> None:
    assert config(host=host).is_local is is_local
