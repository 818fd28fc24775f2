package rerank.opensearch;

/**
 * Constants that the plugin shares with the service and with {@code rerank hook}. tests/unit/test_protocol.py compares them with
 * the constants in Python.
 */
final class Protocol {
    static final String PATH = "/v1/hook";
    /** Name of the processor, and of the options in {@code ext} of a search. Neural-search uses the name {@code rerank}. */
    static final String PROCESSOR = "rerank_stack";
    static final String ALLOWED_URLS = "rerank.allowed_urls";
    /** The object field of stored features. */
    static final String FEATURES = "rerank_features.";
    /** Bytes of the length of the JSON that begins a call, or an answer. */
    static final int FRAME = 4;
    /** Characters of the options in {@code ext}; categories of a query. */
    static final int LONGEST_STACK = 1_000, LONGEST_CATEGORY = 300, MOST_CATEGORIES = 100;
    /** Bytes of the JSON of a query; the whole JSON of a call may have four times as many. */
    static final int LONGEST_QUERY = 1 << 18;

    private Protocol() { }
}
