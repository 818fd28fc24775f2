"""The local engine: documents in SQLite, a text index in tantivy, tf-idf and features in mapped files."""

from rerank.engines.local.engine import LocalEngine

__all__ = ["LocalEngine"]
