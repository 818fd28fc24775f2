package rerank.opensearch;

import org.opensearch.common.util.concurrent.ThreadContext;

/**
 * One running search. If it fails with the fields that the hook has added, it is repeated without them: the response processor
 * is not called for a failed search.
 */
final class Attempt {
    /** The reason of a search that failed with the fields of the hook and not without them. */
    static final String REASON = "search";
    static final String KEY = "rerank.attempt";

    /** The plan of the changed search, or null. */
    volatile SearchPlan plan;

    static Attempt of(ThreadContext context) {
        return context.getTransient(KEY);
    }
}
