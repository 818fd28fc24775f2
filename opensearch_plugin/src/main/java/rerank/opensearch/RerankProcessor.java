package rerank.opensearch;

import static org.opensearch.action.support.ContextPreservingActionListener.wrapPreservingContext;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.opensearch.OpenSearchStatusException;
import org.opensearch.action.search.SearchRequest;
import org.opensearch.action.search.SearchResponse;
import org.opensearch.cluster.ClusterState;
import org.opensearch.cluster.metadata.IndexMetadata;
import org.opensearch.core.action.ActionListener;
import org.opensearch.core.rest.RestStatus;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.search.pipeline.*;

/**
 * The request phase searches for candidates instead of the user's page, and stores a {@link SearchPlan}. The response phase
 * sends them to the service and returns the user's page. Only the request processor has a configuration.
 */
final class RerankProcessor extends AbstractProcessor
        implements StatefulSearchRequestProcessor, StatefulSearchResponseProcessor {
    private static final Logger logger = LogManager.getLogger(RerankProcessor.class);
    private static final String PLAN = "rerank.plan";

    private final RerankPlugin plugin;
    final Config config;
    final ScoringClient service;
    // Stack and indices -> the fields that the service requested last. The first search sends ids, scores and scores of clauses.
    final Map<UUID, ScoringResponse.RequestedFields> lastRequested = new ConcurrentHashMap<>();

    RerankProcessor(RerankPlugin plugin, String tag, String description, boolean ignore, Config config, ScoringClient service) {
        super(tag, description, ignore);
        this.plugin = plugin;
        this.config = config;
        this.service = service;
    }

    @Override
    public String getType() {
        return Protocol.PROCESSOR;
    }

    @Override
    public SearchRequest processRequest(SearchRequest request, PipelineProcessingContext context) {
        if (context.getAttribute(PLAN) != null) {
            return request; // the pipeline contains the processor twice
        }
        AttemptFilter.Attempt attempt = AttemptFilter.Attempt.of(plugin.threadContext);
        if (attempt != null && attempt.isLeft()) {
            return request; // a search of OpenSearch for the hits of a group
        }
        SearchPlan earlier = attempt == null ? null : attempt.plan(); // it has removed the options from the search
        SearchPlan plan = new SearchPlan(request, earlier == null ? RerankExt.take(request.source()) : earlier.ext, this);
        context.setAttribute(PLAN, plan);
        if (earlier != null && earlier.outcome != null) {
            plan.end("failed", earlier.reason);
            return request;
        }
        try {
            List<IndexMetadata> indices = indices(request);
            plan.groups = Groups.of(plan.user, indices);
            plan.prepare(config, indices.stream().map(IndexMetadata::getSettings).toList());
            String reason = plan.reasonToPass(), unreachable = service.unreachable();
            if (reason == null) {
                plan.nameLegs();
                plan.retrieval = plan.requestsRetrieval() ? new Retrieval(plan, plugin) : null;
                reason = plan.isAfterCandidates() ? "window" : null;
            }
            if (reason == null && unreachable == null) {
                plan.turn = service.nextTurn(); // only of searches that ask a service
                SearchSourceBuilder candidates = plan.candidates();
                plan.searchedIndices = request.indices().clone();
                plan.searchedRouting = request.routing();
                if (attempt != null) {
                    attempt.begin(plan);
                    plan.attempt = attempt;
                    plan.isRepeated = config.failuresAreErrors() == false;
                }
                return request.source(candidates);
            }
            plan.end(reason == null ? "failed" : "passed", reason == null ? unreachable : reason);
        } catch (RuntimeException e) {
            logger.warn("a search could not be prepared for reranking", e);
            plan.end("failed", "error");
        }
        if (attempt != null) {
            attempt.leave();
        }
        plan.restore();
        plugin.stats.count(plan.outcome, plan.reason);
        if (plan.outcome.equals("failed") && config.failuresAreErrors()) {
            throw new OpenSearchStatusException("rerank: " + plan.reason, RestStatus.SERVICE_UNAVAILABLE);
        }
        return request;
    }

    /** With aggregations, the search waits, without a thread, until the service has named the documents to add. */
    @Override
    public void processRequestAsync(SearchRequest request, PipelineProcessingContext context, ActionListener<SearchRequest> listener) {
        boolean isFirst = context.getAttribute(PLAN) == null;
        SearchRequest prepared;
        try {
            prepared = processRequest(request, context);
        } catch (Exception e) {
            listener.onFailure(e);
            return;
        }
        SearchPlan plan = (SearchPlan) context.getAttribute(PLAN);
        if (isFirst == false || plan == null || plan.retrieval == null || plan.outcome != null) {
            listener.onResponse(prepared);
            return;
        }
        plan.retrieval.begin();
        if (plan.retrieval.reason == null && plan.retrieval.isUnion) {
            ActionListener<SearchRequest> then = wrapPreservingContext(listener, plugin.threadContext);
            plan.retrieval.unite(prepared.source(), () -> then.onResponse(prepared));
        } else {
            listener.onResponse(prepared);
        }
    }

    private List<IndexMetadata> indices(SearchRequest request) {
        try {
            ClusterState state = plugin.clusterService.state();
            return Arrays.stream(plugin.resolver.concreteIndices(state, request.indicesOptions(), true, request.indices()))
                .map(index -> state.metadata().getIndexSafe(index)).toList();
        } catch (RuntimeException e) {
            return List.of(); // missing indices, or indices of other clusters: the search reports them
        }
    }

    @Override
    public SearchResponse processResponse(SearchRequest request, SearchResponse response, PipelineProcessingContext context) {
        throw new UnsupportedOperationException("only processResponseAsync");
    }

    @Override
    public void processResponseAsync(SearchRequest request, SearchResponse response, PipelineProcessingContext context,
                                     ActionListener<SearchResponse> listener) {
        SearchPlan plan = (SearchPlan) context.getAttribute(PLAN);
        if (plan != null) {
            plan.sent = request;
        }
        if (plan == null || plan.outcome != null) {
            boolean isReported = plan != null && plan.isReported();
            listener.onResponse(isReported ? plan.answer(response, response.getHits(), System.nanoTime()) : response);
        } else {
            plan.isRepeated &= isIgnoreFailure() == false;
            new Reranking(plan, plugin, ActionListener.notifyOnce(ActionListener.wrap(answer -> {
                plan.isAnswered = true;
                listener.onResponse(answer);
            }, listener::onFailure))).begin(response);
        }
    }

    /** Keep the fields that the service requests for the next search of a stack and its indices. */
    void remember(UUID key, ScoringResponse answer) {
        if (answer.requested() != null) {
            remember(key, answer.requested());
        } else if (CircuitBreaker.isRefused(answer.reason())) {
            lastRequested.remove(key); // it may now be an older service
        }
    }

    void remember(UUID key, ScoringResponse.RequestedFields requested) {
        if (lastRequested.size() >= 1_000) {
            lastRequested.clear(); // the number of index lists is unlimited; the service requests again
        }
        lastRequested.put(key, requested);
    }
}
