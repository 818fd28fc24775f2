"""Pages of the templates in ``templates``: HTML that needs nothing else, no script and no network."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, **values: Any) -> str:
    """Fill in a template. What is no markupsafe.Markup is escaped; a name that is not there is an error."""
    return _environment().get_template(template).render(values)


def number(value: float | None, digits: int = 3) -> str:
    """Write a number for people; a dash for None.

    >>> number(0.12345), number(12.0, 1), number(None)
    ('0.123', '12.0', '–')
    """
    return "–" if value is None else f"{value:.{digits}f}"


def percent(share: float, digits: int = 1) -> str:
    """Write a share for people.

    >>> percent(0.125), percent(0.125, 0)
    ('12.5 %', '12 %')
    """
    return f"{100 * share:.{digits}f} %"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("rerank.report_page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": number, "percent": percent, "count": "{:,}".format}
    return made
