"""The engine in an OpenSearch cluster."""

from rerank.engines.opensearch.connection import Settings
from rerank.engines.opensearch.engine import OpenSearchEngine
from rerank.engines.opensearch.layout import fields_of

__all__ = ["OpenSearchEngine", "Settings", "fields_of"]
