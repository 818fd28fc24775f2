package rerank.opensearch;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.opensearch.OpenSearchStatusException;
import org.opensearch.action.search.SearchRequest;
import org.opensearch.action.search.SearchResponse;
import org.opensearch.action.search.SearchResponseSections;
import org.opensearch.action.support.ContextPreservingActionListener;
import org.opensearch.common.document.DocumentField;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.action.ActionListener;
import org.opensearch.core.common.bytes.BytesReference;
import org.opensearch.core.rest.RestStatus;
import org.opensearch.core.xcontent.ToXContent;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.search.SearchExtBuilder;
import org.opensearch.search.SearchHit;
import org.opensearch.search.SearchHits;
import org.opensearch.search.aggregations.InternalAggregations;
import org.opensearch.search.internal.InternalSearchResponse;
import org.opensearch.search.pipeline.AbstractProcessor;
import org.opensearch.search.pipeline.PipelineProcessingContext;
import org.opensearch.search.pipeline.StatefulSearchResponseProcessor;
import org.opensearch.search.profile.SearchProfileShardResults;

/** Sends the candidates to the service, orders them by its scores, and cuts out the user's window. */
final class ResponseProcessor extends AbstractProcessor implements StatefulSearchResponseProcessor {
    private static final Logger logger = LogManager.getLogger(ResponseProcessor.class);
    private static final String SIGNALS = "_rerank";

    private final RerankPlugin plugin;

    ResponseProcessor(RerankPlugin plugin, String tag, String description, boolean ignoreFailure) {
        super(tag, description, ignoreFailure);
        this.plugin = plugin;
    }

    @Override
    public String getType() {
        return RerankPlugin.NAME;
    }

    @Override
    public SearchResponse processResponse(SearchRequest request, SearchResponse response, PipelineProcessingContext context) {
        throw new UnsupportedOperationException("only asynchronous");
    }

    @Override
    public void processResponseAsync(
        SearchRequest request,
        SearchResponse response,
        PipelineProcessingContext context,
        ActionListener<SearchResponse> listener
    ) {
        Plan plan = (Plan) context.getAttribute(Plan.KEY);
        if (plan == null) { // only the response processor is in the pipeline
            listener.onResponse(response);
            return;
        }
        long start = System.nanoTime();
        SearchHit[] hits = response.getHits().getHits();
        if (plan.skipped() != null) {
            listener.onResponse(plan.ext().is("explain") ? copy(response, response.getHits(), plan, plan.skipped(), plan.reason(), 0, 0) : response);
            return;
        }
        // The answer comes on another thread, which has the headers of another request.
        ActionListener<SearchResponse> back = ContextPreservingActionListener.wrapPreservingContext(listener, plugin.threadContext);
        String passed = hits.length == 0 ? "no_hits" : Arrays.stream(hits).anyMatch(h -> h.getId() == null) ? "no_ids" : null;
        byte[] body = null;
        List<String> ids = List.of();
        Failure failure = null;
        try {
            ids = ids(hits);
            Map<String, List<String>> features = features(plan, hits);
            body = passed == null ? body(plan, hits, ids, features) : null;
        } catch (IOException | RuntimeException e) {
            logger.warn("a search could not be sent to the service", e);
            failure = new Failure("error", e.toString());
        }
        if (body == null) {
            finish(plan, response, start, passed == null ? null : Answer.passed(passed), failure, back);
            return;
        }
        List<String> sent = ids;
        plan.service().call(
            body,
            // Room for ids and signals; signals have a handful of numbers for each hit.
            1_000_000 + 5_000 * hits.length,
            bytes -> Answer.read(bytes, sent),
            (answer, error) -> finish(plan, response, start, answer, error, back)
        );
    }

    /** Take the features out of the hits, and remove what the user did not ask for. */
    private static Map<String, List<String>> features(Plan plan, SearchHit[] hits) {
        Map<String, List<String>> features = new LinkedHashMap<>();
        for (String feature : plan.features()) {
            String field = RequestProcessor.field(feature);
            boolean ours = plan.added().contains(field);
            List<String> values = new ArrayList<>(hits.length);
            for (SearchHit hit : hits) {
                DocumentField found = ours ? hit.removeDocumentField(field) : hit.field(field);
                Object value = found == null || found.getValues().isEmpty() ? null : found.getValue();
                values.add(value == null ? null : value.toString());
            }
            features.put(feature, values);
        }
        return features;
    }

    /** The ids, told apart where several indices or shards hold the same one. */
    private static List<String> ids(SearchHit[] hits) {
        Set<String> seen = new LinkedHashSet<>();
        for (SearchHit hit : hits) {
            String id = hit.getId();
            for (int n = 1; seen.add(id) == false; n++) {
                id = hit.getIndex() + "/" + hit.getId() + (n == 1 ? "" : "/" + n);
            }
        }
        return List.copyOf(seen);
    }

    private static byte[] body(Plan plan, SearchHit[] hits, List<String> ids, Map<String, List<String>> features) throws IOException {
        Collection<String> indices = new LinkedHashSet<>(Arrays.asList(plan.indices()));
        if (indices.isEmpty()) { // all indices, or those of a point in time
            for (SearchHit hit : hits) {
                indices.add(hit.getIndex());
            }
        }
        try (XContentBuilder json = JsonXContent.contentBuilder()) {
            json.startObject().field("stack", plan.stack()).field("index", indices);
            json.field("query");
            if (plan.query() == null) {
                json.nullValue();
            } else {
                plan.query().toXContent(json, ToXContent.EMPTY_PARAMS);
            }
            json.field("rerank", plan.ext().values.isEmpty() ? null : plan.ext().values);
            json.field("ids", ids).startArray("scores");
            for (SearchHit hit : hits) {
                json.value(hit.getScore());
            }
            json.endArray().field("features", features).endObject();
            return BytesReference.toBytes(BytesReference.bytes(json));
        }
    }

    private void finish(
        Plan plan,
        SearchResponse response,
        long start,
        Answer answer,
        Failure failure,
        ActionListener<SearchResponse> listener
    ) {
        SearchResponse result = null;
        if (failure == null) {
            try {
                if (answer.features() != null) {
                    plan.remember().accept(answer.features());
                }
                SearchHits hits = answer.passed() == null ? reranked(plan, response.getHits(), answer) : page(plan, response.getHits());
                result = copy(
                    response, hits, plan, answer.passed() == null ? "reranked" : "passed", answer.passed(),
                    response.getHits().getHits().length, System.nanoTime() - start
                );
                if (answer.passed() == null) {
                    plugin.stats.reranked();
                } else {
                    plugin.stats.passed(answer.passed());
                }
            } catch (RuntimeException e) {
                logger.warn("a search could not be reranked", e);
                failure = new Failure("error", e.toString());
            }
        }
        if (failure != null) {
            plugin.stats.failed(failure.reason);
            if (plan.config().failuresAreErrors()) {
                listener.onFailure(
                    new OpenSearchStatusException("rerank: " + failure.reason + ": " + failure.getMessage(), RestStatus.SERVICE_UNAVAILABLE)
                );
                return;
            }
            result = copy(
                response, page(plan, response.getHits()), plan, "failed", failure.reason,
                response.getHits().getHits().length, System.nanoTime() - start
            );
        }
        listener.onResponse(result);
    }

    private static SearchHits reranked(Plan plan, SearchHits hits, Answer answer) {
        SearchHit[] page = new SearchHit[window(plan, hits.getHits().length)];
        for (int i = 0; i < page.length; i++) {
            Answer.Hit best = answer.hits().get(plan.from() + i);
            SearchHit hit = hits.getHits()[best.position()];
            if (plan.ext().is("explain")) {
                Map<String, Object> signals = new LinkedHashMap<>();
                signals.put("first_stage", Map.of("rank", best.position() + 1, "score", hit.getScore()));
                signals.put("signals", best.signals());
                hit.setDocumentField(SIGNALS, new DocumentField(SIGNALS, List.of(signals)));
            }
            hit.score(best.score());
            page[i] = hit;
        }
        return new SearchHits(page, hits.getTotalHits(), answer.hits().get(0).score());
    }

    private static SearchHits page(Plan plan, SearchHits hits) {
        int length = window(plan, hits.getHits().length);
        SearchHit[] page = Arrays.copyOfRange(hits.getHits(), plan.from(), plan.from() + length);
        return new SearchHits(page, hits.getTotalHits(), hits.getMaxScore());
    }

    private static int window(Plan plan, int hits) {
        return Math.max(0, Math.min(plan.size(), hits - plan.from()));
    }

    private static SearchResponse copy(
        SearchResponse response,
        SearchHits hits,
        Plan plan,
        String outcome,
        String reason,
        int candidates,
        long nanos
    ) {
        SearchResponseSections old = response.getInternalResponse();
        List<SearchExtBuilder> ext = new ArrayList<>(old.getSearchExtBuilders());
        if (plan.ext().is("explain")) {
            Map<String, Object> told = new LinkedHashMap<>();
            told.put("outcome", outcome);
            if (reason != null) {
                told.put("reason", reason);
            }
            if (candidates > 0) {
                told.put("candidates", candidates);
                told.put("took_ms", nanos / 1e6);
            }
            ext.add(new RerankExt(told));
        }
        return new SearchResponse(
            new InternalSearchResponse(
                hits,
                (InternalAggregations) old.aggregations(),
                old.suggest(),
                old.profile().isEmpty() ? null : new SearchProfileShardResults(old.profile()),
                old.timedOut(),
                old.terminatedEarly(),
                old.getNumReducePhases(),
                ext,
                old.getProcessorResult()
            ),
            response.getScrollId(),
            response.getTotalShards(),
            response.getSuccessfulShards(),
            response.getSkippedShards(),
            response.getTook().millis() + TimeUnit.NANOSECONDS.toMillis(nanos),
            response.getPhaseTook(),
            response.getShardFailures(),
            response.getClusters(),
            response.pointInTimeId()
        );
    }
}
