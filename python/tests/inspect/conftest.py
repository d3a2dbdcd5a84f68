"""What the tests of the Inspect provider share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def shared_env(anyio_backend: str) -> AsyncIterator[object]:
    """One sandbox for a module's tests, as a sample gets it."""
    from kennel.inspect import KennelSandboxEnvironment as Provider

    environments = await Provider.sample_init("test", None, {})
    yield environments["default"]
    await Provider.sample_cleanup("test", None, environments, interrupted=False)
