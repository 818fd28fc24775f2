package rerank.opensearch;

import static org.opensearch.action.support.ContextPreservingActionListener.wrapPreservingContext;

import java.lang.reflect.Proxy;
import java.util.function.Supplier;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.opensearch.ExceptionsHelper;
import org.opensearch.action.ActionRequest;
import org.opensearch.action.search.SearchAction;
import org.opensearch.action.search.SearchRequest;
import org.opensearch.action.search.SearchResponse;
import org.opensearch.action.support.ActionFilter;
import org.opensearch.action.support.ActionFilterChain;
import org.opensearch.common.util.concurrent.ThreadContext;
import org.opensearch.core.action.ActionListener;
import org.opensearch.core.action.ActionResponse;
import org.opensearch.core.rest.RestStatus;
import org.opensearch.core.tasks.TaskCancelledException;
import org.opensearch.tasks.CancellableTask;
import org.opensearch.tasks.Task;

/**
 * Repeats a search as the user sent it, if the fields of the hook may be why it failed, or if no response processor has cut
 * the candidates to the user's page. A response processor cannot do this: it is not called for a failed search.
 */
final class AttemptFilter {
    private static final Logger logger = LogManager.getLogger(AttemptFilter.class);
    private static final String KEY = "rerank.attempt";
    private final RerankPlugin plugin;

    AttemptFilter(RerankPlugin plugin) {
        this.plugin = plugin;
    }

    /** A search of a user, in the context of its thread. */
    static final class Attempt {
        private final Task task;
        private volatile SearchPlan plan; // of a search for candidates

        Attempt(Task task) {
            this.task = task;
        }

        /** The attempt of this thread, or null. */
        static Attempt of(ThreadContext context) {
            return context.getTransient(KEY);
        }

        SearchPlan plan() {
            return plan;
        }

        void begin(SearchPlan prepared) {
            plan = prepared;
        }

        boolean isCancelled() {
            return task instanceof CancellableTask cancellable && cancellable.isCancelled();
        }

        /** Cancelling the user's search also cancels a search with this request. */
        <T extends ActionRequest> T child(T request, RerankPlugin plugin) {
            request.setParentTask(plugin.clusterService.localNode().getId(), task.getId());
            return request;
        }
    }

    /** As the last filter before the search. From OpenSearch 3.4, {@code apply} has one more argument, which is not used here. */
    ActionFilter asFilter() {
        return (ActionFilter) Proxy.newProxyInstance(ActionFilter.class.getClassLoader(), new Class<?>[] {ActionFilter.class},
            (proxy, method, arguments) -> switch (method.getName()) {
                case "order" -> Integer.MAX_VALUE;
                case "apply" -> {
                    apply(arguments);
                    yield null;
                }
                case "equals" -> proxy == arguments[0];
                case "hashCode" -> hashCode();
                case "toString" -> toString();
                default -> throw new UnsupportedOperationException(method.toString());
            });
    }

    /** arguments: task, name of the action, request, others, listener, the next filters. */
    @SuppressWarnings("unchecked")
    private void apply(Object[] arguments) {
        int last = arguments.length - 1;
        apply((Task) arguments[0], (String) arguments[1], (ActionRequest) arguments[2],
            (ActionListener<ActionResponse>) arguments[last - 1], (ActionFilterChain<ActionRequest, ActionResponse>) arguments[last]);
    }

    @SuppressWarnings("try") // contexts are only closed
    private <Request extends ActionRequest, Response extends ActionResponse> void apply(Task task, String action,
            Request request, ActionListener<Response> listener, ActionFilterChain<Request, Response> chain) {
        ThreadContext context = plugin.threadContext;
        if (action.equals(SearchAction.NAME) == false || request instanceof SearchRequest == false || Attempt.of(context) != null) {
            chain.proceed(task, action, request, listener);
            return;
        }
        Attempt attempt = new Attempt(task);
        ActionListener<Response> outside = wrapPreservingContext(listener, context);
        try (ThreadContext.StoredContext ignored = context.newStoredContext(true)) {
            context.putTransient(KEY, attempt);
            Supplier<ThreadContext.StoredContext> inside = context.newRestorableContext(true);
            chain.proceed(task, action, request, ActionListener.wrap(response -> {
                SearchPlan plan = attempt.plan();
                if (plan == null || plan.isAnswered) {
                    outside.onResponse(response);
                } else {
                    logger.warn("a search pipeline has the processor [rerank_stack] only in its request phase, or ignores its failure");
                    again(attempt, "pipeline", (SearchRequest) request, inside, outside);
                }
            }, e -> {
                SearchPlan plan = attempt.plan();
                if (plan != null && plan.retrieval != null) {
                    plan.retrieval.end();
                }
                boolean isOurs = plan != null && plan.isRepeated && plan.outcome == null;
                if (isOurs && attempt.isCancelled() == false && mayComeFromFields(e)) {
                    logger.debug("a search failed with what the hook requested", e);
                    again(attempt, SearchPlan.FAILED_SEARCH, (SearchRequest) request, inside, outside);
                } else {
                    outside.onFailure(e);
                }
            }));
        }
    }

    /**
     * Whether a search without the fields of the hook may succeed. A cancelled or rejected search, or one that a node could
     * not complete, would only add load.
     */
    static boolean mayComeFromFields(Throwable e) {
        if (ExceptionsHelper.unwrapCausesAndSuppressed(e, cause -> cause instanceof TaskCancelledException).isPresent()) {
            return false;
        }
        RestStatus status = ExceptionsHelper.status(e);
        return status.getStatusFamilyCode() == 4 && status != RestStatus.TOO_MANY_REQUESTS;
    }

    @SuppressWarnings({"unchecked", "try"})
    private <Response extends ActionResponse> void again(Attempt attempt, String reason, SearchRequest request,
            Supplier<ThreadContext.StoredContext> inside, ActionListener<Response> listener) {
        attempt.plan().end("failed", reason);
        attempt.plan().restore();
        try (ThreadContext.StoredContext again = inside.get()) {
            plugin.node.search(attempt.child(request, plugin), ActionListener.wrap((SearchResponse response) -> {
                plugin.stats.count("failed", reason);
                listener.onResponse((Response) response);
            }, listener::onFailure));
        }
    }
}
