package rerank.opensearch;

import java.util.List;
import java.util.function.BiConsumer;
import org.opensearch.core.action.ActionListener;

/**
 * Searches for the documents that the service names for a query with conditions. It names more than are needed, because some may
 * not meet the conditions. So the needed ones are searched first. Others follow only if some of these were not found.
 */
final class NearestSearch {
    /** Documents to search for each missing one, as a multiple of those that the first search needed for one that it found. */
    private static final double MARGIN = 2;
    private static final int FEWEST = 16;

    private final Nearest nearest;
    private final BiConsumer<Nearest, ActionListener<Added>> search;

    /** search: finds documents, with the rights of the user and under the conditions of the query. */
    NearestSearch(Nearest nearest, BiConsumer<Nearest, ActionListener<Added>> search) {
        this.nearest = nearest;
        this.search = search;
    }

    /** listener: gets all documents that were found, or the failure of a search. */
    void begin(ActionListener<Added> listener) {
        Nearest needed = nearest.needed();
        search.accept(needed, Reranking.ending(listener, first -> {
            List<String> reserve = nearest.reserve();
            int asked = needed.count(), missing = asked - first.hits().size();
            if (first.reason() != null || missing <= 0 || reserve.isEmpty()) {
                listener.onResponse(first);
                return;
            }
            int count = nearest.retrievers().size() > 1 ? reserve.size() // it is unknown which retriever lacks documents
                : (int) Math.min(reserve.size(), Math.max(FEWEST, Math.ceil(MARGIN * missing * asked / Math.max(first.hits().size(), 1))));
            further(reserve, count, asked, first, listener);
        }, listener::onFailure));
    }

    /** Search for the first documents of the reserve, and for the others only if some are still missing. */
    private void further(List<String> reserve, int count, int needed, Added earlier, ActionListener<Added> listener) {
        search.accept(nearest.others(reserve.subList(0, count)), Reranking.ending(listener, found -> {
            Added all = earlier.and(found);
            if (all.reason() != null || all.hits().size() >= needed || count == reserve.size()) {
                listener.onResponse(all);
            } else {
                List<String> rest = reserve.subList(count, reserve.size());
                further(rest, rest.size(), needed, all, listener);
            }
        }, listener::onFailure));
    }
}
