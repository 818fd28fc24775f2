"""CNN rankers ``text``, ``meta``, ``joint`` (Kuwa, Schamoni, Riezler 2020)."""
