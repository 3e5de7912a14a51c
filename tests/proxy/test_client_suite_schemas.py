"""Schemas over a proxy: their tests have a client of their own making, in place of which they get this one."""

import pytest

import engine
from tests.api.test_schemas import *  # noqa: F403

pytestmark = pytest.mark.fuzz


@pytest.fixture
def client(blocking: engine.Client) -> engine.Client:
    """One that comes over the proxy."""
    return blocking
