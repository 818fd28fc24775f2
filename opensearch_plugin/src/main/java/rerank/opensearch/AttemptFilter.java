package rerank.opensearch;

import static org.opensearch.action.support.ContextPreservingActionListener.wrapPreservingContext;

import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.opensearch.action.ActionRequest;
import org.opensearch.action.search.SearchAction;
import org.opensearch.action.search.SearchRequest;
import org.opensearch.action.search.SearchResponse;
import org.opensearch.action.support.ActionFilter;
import org.opensearch.action.support.ActionFilterChain;
import org.opensearch.action.support.ActionRequestMetadata;
import org.opensearch.common.util.concurrent.ThreadContext;
import org.opensearch.core.action.ActionListener;
import org.opensearch.core.action.ActionResponse;
import org.opensearch.core.tasks.TaskCancelledException;
import org.opensearch.tasks.Task;

/**
 * Repeats a search that fails with the fields of the hook, without them. A response processor cannot do this, because it is
 * not called for a failed search.
 */
final class AttemptFilter implements ActionFilter {
    private static final Logger logger = LogManager.getLogger(AttemptFilter.class);
    private final RerankPlugin plugin;

    AttemptFilter(RerankPlugin plugin) {
        this.plugin = plugin;
    }

    @Override
    public int order() {
        return Integer.MAX_VALUE; // the last filter before the search
    }

    @Override
    @SuppressWarnings("try") // contexts are only closed
    public <Request extends ActionRequest, Response extends ActionResponse> void apply(Task task, String action,
            Request request, ActionRequestMetadata<Request, Response> metadata, ActionListener<Response> listener,
            ActionFilterChain<Request, Response> chain) {
        ThreadContext context = plugin.threadContext;
        if (action.equals(SearchAction.NAME) == false || request instanceof SearchRequest == false || context.getTransient(SearchPlan.ATTEMPT) != null) {
            chain.proceed(task, action, request, listener);
            return;
        }
        AtomicReference<SearchPlan> attempt = new AtomicReference<>();
        ActionListener<Response> outside = wrapPreservingContext(listener, context);
        try (ThreadContext.StoredContext ignored = context.newStoredContext(true)) {
            context.putTransient(SearchPlan.ATTEMPT, attempt);
            Supplier<ThreadContext.StoredContext> inside = context.newRestorableContext(true);
            chain.proceed(task, action, request, ActionListener.wrap(outside::onResponse, e -> {
                SearchPlan plan = attempt.get();
                if (plan == null || plan.outcome != null || plan.isRepeated == false || e instanceof TaskCancelledException) {
                    outside.onFailure(e);
                    return;
                }
                logger.debug("a search failed with what the hook asked for", e);
                try (ThreadContext.StoredContext again = inside.get()) {
                    again((SearchRequest) request, outside);
                }
            }));
        }
    }

    @SuppressWarnings("unchecked")
    private <Response extends ActionResponse> void again(SearchRequest request, ActionListener<Response> listener) {
        plugin.node.search(request, ActionListener.wrap((SearchResponse response) -> {
            plugin.stats.count("failed", SearchPlan.FAILED_SEARCH);
            listener.onResponse((Response) response);
        }, listener::onFailure));
    }
}
