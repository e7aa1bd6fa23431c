from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from chockstone.cli.models.making import make_model
from chockstone.cli.models.shape import Architecture

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Architecture, Path]:
    directory = tmp_path_factory.mktemp("models") / request.param
    make_model(directory, architecture=request.param)
    return request.param, directory
