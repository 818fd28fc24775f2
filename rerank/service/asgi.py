"""The types of ASGI, the interface between a server and an application in Python."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Scope = Mapping[str, Any]
"""A request without its body: type, method, path, headers and others."""

Message = Mapping[str, Any]
"""An event: its ``type``, and the fields of this type."""

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
