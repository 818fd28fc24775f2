package rerank.opensearch;

import java.util.List;
import java.util.function.BiConsumer;
import org.opensearch.core.action.ActionListener;

/**
 * Searches for the documents of one index that the service names for a query with conditions. It names more than are needed,
 * because some may not meet the conditions. So the needed ones are searched first. Others follow only if some of these were not
 * found.
 */
final class NearestSearch {
    /** Documents to search for each missing one, as a multiple of those that the first search needed for one that it found. */
    private static final double MARGIN = 2;
    private static final int FEWEST = 16;

    private final Nearest nearest;
    private final List<String> needed;
    private final BiConsumer<Nearest, ActionListener<Added>> search;

    /** search: finds documents, with the rights of the user and under the conditions of the query. */
    NearestSearch(Nearest nearest, BiConsumer<Nearest, ActionListener<Added>> search) {
        this.nearest = nearest;
        this.needed = nearest.needed();
        this.search = search;
    }

    /** listener: gets all documents that were found, or the failure of a search. */
    void begin(ActionListener<Added> listener) {
        List<String> reserve = nearest.reserve();
        search.accept(nearest.only(needed), Reranking.ending(listener, first -> {
            if (isEnough(first) || reserve.isEmpty()) {
                listener.onResponse(first);
            } else {
                further(reserve, Math.min(likelyCount(first.hits().size()), reserve.size()), first, listener);
            }
        }, listener::onFailure));
    }

    /** Whether no further search is useful. */
    private boolean isEnough(Added added) {
        return added.reason() != null || added.hits().size() >= needed.size();
    }

    /** How many documents of the reserve probably replace the missing ones. matching: number of needed documents that were found. */
    private int likelyCount(int matching) {
        if (nearest.retrievers().size() > 1) {
            return Integer.MAX_VALUE; // all: hits may have no ids, so it is unknown which retriever lacks documents
        }
        int missing = needed.size() - matching;
        return Math.max(FEWEST, (int) Math.ceil(MARGIN * missing * needed.size() / Math.max(matching, 1)));
    }

    /** Search for the first documents of the reserve, and for the others only if some are still missing. */
    private void further(List<String> reserve, int count, Added earlier, ActionListener<Added> listener) {
        search.accept(nearest.only(reserve.subList(0, count)), Reranking.ending(listener, later -> {
            Added all = earlier.and(later);
            if (isEnough(all) || count == reserve.size()) {
                listener.onResponse(all);
            } else {
                List<String> remainder = reserve.subList(count, reserve.size());
                further(remainder, remainder.size(), all, listener);
            }
        }, listener::onFailure));
    }
}
