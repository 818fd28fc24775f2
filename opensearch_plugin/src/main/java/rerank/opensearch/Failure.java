package rerank.opensearch;

/** A search could not be reranked. reason: the name of its counter. */
final class Failure extends RuntimeException {
    private static final long serialVersionUID = 1;

    final String reason;

    Failure(String reason, String message) {
        super(message, null, false, false); // raised for every search while the service is down: no stack trace
        this.reason = reason;
    }
}
