"""The HTTP service: ``rerank serve``. Needs the extra ``service`` (uvicorn, prometheus-client)."""
