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
import org.opensearch.node.NodeClosedException;
import org.opensearch.tasks.CancellableTask;
import org.opensearch.tasks.Task;
import org.opensearch.transport.ConnectTransportException;

/**
 * Repeats a search as the user sent it, if the fields of the hook may be why it failed, or if no response processor has cut
 * the candidates to the user's page. Repeats it with the hook, once, if a node has left the cluster during the search.
 * A response processor cannot do this: it is not called for a failed search.
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
        private volatile boolean isRepeated; // because a node has left
        private volatile boolean isLeft; // to OpenSearch

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

        /** The search is left to OpenSearch, with the searches that it makes itself, for the hits of each group. */
        void leave() {
            isLeft = true;
        }

        boolean isLeft() {
            return isLeft;
        }

        void begin(SearchPlan prepared) {
            plan = prepared;
        }

        /** Whether this failure ends the search only because a node has left, and the search was not repeated yet. */
        boolean canRepeat(Throwable e) {
            return isRepeated == false && isCancelled() == false && comesFromLostNode(e);
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
    <Request extends ActionRequest, Response extends ActionResponse> void apply(Task task, String action,
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
            chain.proceed(task, action, request, new Search<>(attempt, (SearchRequest) request, inside, outside).listener(this));
        }
    }

    /**
     * A search of a user.
     *
     * @param inside the context of the search
     * @param outside gets the response
     */
    private record Search<Response extends ActionResponse>(Attempt attempt, SearchRequest request,
            Supplier<ThreadContext.StoredContext> inside, ActionListener<Response> outside) {
        ActionListener<Response> listener(AttemptFilter filter) {
            return ActionListener.wrap(response -> filter.answer(this, response), e -> filter.fail(this, e));
        }
    }

    private <Response extends ActionResponse> void answer(Search<Response> search, Response response) {
        SearchPlan plan = search.attempt.plan();
        if (plan == null || plan.isAnswered) {
            search.outside.onResponse(response);
        } else {
            logger.warn("a search pipeline has the processor [rerank_stack] only in its request phase, or ignores its failure");
            plainly(search, "pipeline");
        }
    }

    private <Response extends ActionResponse> void fail(Search<Response> search, Exception e) {
        SearchPlan plan = search.attempt.plan();
        if (plan != null && plan.retrieval != null) {
            plan.retrieval.end();
        }
        boolean isOurs = plan != null && plan.isRepeated && plan.outcome == null;
        if (plan != null && search.attempt.canRepeat(e)) {
            logger.debug("a node has left during a search", e);
            search.attempt.isRepeated = true;
            plan.end(null, null);
            repeat(search, search.listener(this));
        } else if (isOurs && search.attempt.isCancelled() == false && mayComeFromFields(e)) {
            logger.debug("a search failed with what the hook requested", e);
            plainly(search, SearchPlan.FAILED_SEARCH);
        } else {
            search.outside.onFailure(e);
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

    /** Whether a node has left the cluster: OpenSearch asks another copy in the query phase, but not in the fetch phase. */
    static boolean comesFromLostNode(Throwable e) {
        return ExceptionsHelper.unwrapCausesAndSuppressed(e,
            cause -> cause instanceof ConnectTransportException || cause instanceof NodeClosedException).isPresent();
    }

    /** Search as the user has sent it. */
    private <Response extends ActionResponse> void plainly(Search<Response> search, String reason) {
        search.attempt.plan().end("failed", reason);
        repeat(search, ActionListener.wrap(response -> {
            plugin.stats.count("failed", reason);
            search.outside.onResponse(response);
        }, search.outside::onFailure));
    }

    /** Search again. If the plan has no outcome, the request phase makes a new one. */
    @SuppressWarnings({"unchecked", "try"})
    private <Response extends ActionResponse> void repeat(Search<Response> search, ActionListener<Response> listener) {
        search.attempt.plan().restore();
        try (ThreadContext.StoredContext again = search.inside.get()) {
            plugin.node.search(search.attempt.child(search.request, plugin), (ActionListener<SearchResponse>) (ActionListener<?>) listener);
        }
    }
}
