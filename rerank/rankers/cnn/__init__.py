"""CNN rankers over words and categories: ``text``, ``meta``, ``joint`` (Kuwa, Schamoni, Riezler 2020)."""
