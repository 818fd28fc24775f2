"""HTML pages from ``templates/``. The only script, ``page.js``, is allowed by its hash."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, **values: Any) -> str:
    """Fill in a template. Strings are escaped, except Markup; undefined names are errors."""
    return _environment().get_template(template).render(values)


def number(value: float | None, digits: int = 3) -> str:
    """Format a number; a dash for None.

    >>> number(0.12345), number(12.0, 1), number(None)
    ('0.123', '12.0', '–')
    """
    return "–" if value is None else f"{value:.{digits}f}"


def percent(share: float, digits: int = 1) -> str:
    """Format a share.

    >>> percent(0.125), percent(0.125, 0)
    ('12.5 %', '12 %')
    """
    return f"{100 * share:.{digits}f} %"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rerank.report_page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "percent": percent, "count": "{:,}".format}
    script = (Path(__file__).parent / "templates" / "page.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {"script": Markup(script), "script_hash": f"sha256-{digest}"}
    return environment
