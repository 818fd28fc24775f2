package rerank.opensearch;

/** Constants that the plugin shares with the service and {@code rerank hook}, written by protocol.py. */
final class Protocol {
    static final String PATH = "/v1/hook";
    static final String RETRIEVE_PATH = "/v1/retrieve";
    /** Name of the processor, and of the options in {@code ext}. Neural-search uses {@code rerank}. */
    static final String PROCESSOR = "rerank_stack";
    static final String ALLOWED_URLS = "plugins.rerank_stack.allowed_urls";
    /** The object field of stored features. */
    static final String FEATURES = "rerank_features.";
    /** Bytes of the length of the JSON that begins a call, or an answer. */
    static final int FRAME = 4;
    /** Characters of the options in {@code ext}; categories of a query. */
    static final int LONGEST_STACK = 1_000;
    static final int LONGEST_CATEGORY = 300;
    static final int MOST_CATEGORIES = 100;
    /** Documents of a call, by the default of the service. */
    static final int MOST_CANDIDATES = 1_000;
    /** Bytes of the JSON of a call, and of the query in it. */
    static final int LONGEST_JSON = 1_048_576;
    static final int LONGEST_QUERY = 262_144;

    private Protocol() { }
}
