"""The local engine: SQLite, tantivy, and mapped files."""

from rerank.engines.local.engine import LocalEngine

__all__ = ["LocalEngine"]
