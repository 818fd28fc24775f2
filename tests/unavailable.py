"""Skips tests whose requirements are missing."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def unavailable(reason: object) -> NoReturn:
    """Skip the test with this reason. In CI, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(str(reason))
    pytest.skip(str(reason))
