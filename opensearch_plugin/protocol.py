"""Write Protocol.java: the constants that the plugin shares with the service and ``rerank hook``.

python opensearch_plugin/protocol.py
"""

from __future__ import annotations

from pathlib import Path

from rerank.engines.opensearch.columns import FEATURES
from rerank.engines.opensearch.templates import PROCESSOR
from rerank.hook.plugin import ALLOWED
from rerank.service import schemas
from rerank.service.app import ENDPOINTS
from rerank.service.settings import ServeOptions

FILE = Path(__file__).parent / "src/main/java/rerank/opensearch/Protocol.java"

_JAVA = """package rerank.opensearch;

/** Constants that the plugin shares with the service and {{@code rerank hook}}, written by protocol.py. */
final class Protocol {{
    static final String PATH = "{path}";
    static final String RETRIEVE_PATH = "{retrieve_path}";
    /** Name of the processor, and of the options in {{@code ext}}. Neural-search uses {{@code rerank}}. */
    static final String PROCESSOR = "{processor}";
    static final String ALLOWED_URLS = "{allowed}";
    /** The object field of stored features. */
    static final String FEATURES = "{features}.";
    /** Bytes of the length of the JSON that begins a call, or an answer. */
    static final int FRAME = {schemas.FRAME};
    /** Characters of the options in {{@code ext}}; categories of a query. */
    static final int LONGEST_STACK = {schemas.LONGEST_STACK:_};
    static final int LONGEST_CATEGORY = {schemas.LONGEST_CATEGORY};
    static final int MOST_CATEGORIES = {schemas.MOST_CATEGORIES};
    /** Documents of a call, by the default of the service. */
    static final int MOST_CANDIDATES = {most_candidates:_};
    /** Bytes of the JSON of a call, and of the query in it. */
    static final int LONGEST_JSON = {schemas.LONGEST_HOOK:_};
    static final int LONGEST_QUERY = {longest_query:_};

    private Protocol() {{ }}
}}
"""


def java() -> str:
    """Return the text of Protocol.java."""
    (path,) = (one.path for one in ENDPOINTS if one.body is schemas.HookCall)
    (retrieve_path,) = (one.path for one in ENDPOINTS if one.body is schemas.RetrieveBody)
    return _JAVA.format(
        path=path,
        retrieve_path=retrieve_path,
        processor=PROCESSOR,
        allowed=ALLOWED,
        features=FEATURES,
        schemas=schemas,
        longest_query=schemas.LONGEST_HOOK // 4,
        most_candidates=ServeOptions().max_candidates,
    )


if __name__ == "__main__":
    FILE.write_text(java(), "utf-8")
