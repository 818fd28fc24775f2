"""What a test does where something it needs is not at hand."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def unavailable(reason: object) -> NoReturn:
    """Skip, with the reason; in CI, where everything has to be there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(str(reason))
    pytest.skip(str(reason))
