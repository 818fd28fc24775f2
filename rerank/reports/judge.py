"""The HTML page on which people judge hits. Its only script, ``judge.js``, is allowed by its hash."""

from __future__ import annotations

from rerank.reports.page import make_environment, read_script

GRADES = {0: "not relevant", 1: "partly relevant", 2: "relevant", 3: "the best answer"}
"""Grade -> its name on the page."""


def judging_page() -> str:
    """Return the page. It has no queries and no hits: the script fetches them, with the token of the judge.

    >>> judging_page()[:15]
    '<!DOCTYPE html>'
    """
    return make_environment().get_template("judge.html").render(grades=GRADES, **read_script("judge.js"))
