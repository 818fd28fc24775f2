package rerank.opensearch;

import org.opensearch.common.util.concurrent.ThreadContext;

/**
 * One search on its way. Where it fails with what the hook has added to it, it is made once more without: the response
 * processor hears of no failure, and nothing that the hook asks for may break a search.
 */
final class Attempt {
    /** Why a search was not reranked: with the hook's fields, or for all candidates, it failed, and without it did not. */
    static final String REASON = "search";
    static final String KEY = "rerank.attempt";

    /** Of the search that was changed, when it is on its way. */
    volatile SearchPlan plan;

    static Attempt of(ThreadContext context) {
        return context.getTransient(KEY);
    }
}
