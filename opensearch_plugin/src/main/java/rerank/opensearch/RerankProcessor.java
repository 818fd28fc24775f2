package rerank.opensearch;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.opensearch.OpenSearchStatusException;
import org.opensearch.action.search.SearchContextId;
import org.opensearch.action.search.SearchRequest;
import org.opensearch.action.search.SearchResponse;
import org.opensearch.action.search.SearchResponseSections;
import org.opensearch.action.support.ContextPreservingActionListener;
import org.opensearch.cluster.ClusterState;
import org.opensearch.common.document.DocumentField;
import org.opensearch.common.regex.Regex;
import org.opensearch.common.settings.Settings;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.action.ActionListener;
import org.opensearch.core.common.bytes.BytesReference;
import org.opensearch.core.rest.RestStatus;
import org.opensearch.core.xcontent.ToXContent;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.index.IndexSettings;
import org.opensearch.index.query.QueryBuilder;
import org.opensearch.search.SearchExtBuilder;
import org.opensearch.search.SearchHit;
import org.opensearch.search.SearchHits;
import org.opensearch.search.aggregations.InternalAggregations;
import org.opensearch.search.builder.PointInTimeBuilder;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.search.fetch.subphase.FieldAndFormat;
import org.opensearch.search.internal.InternalSearchResponse;
import org.opensearch.search.pipeline.AbstractProcessor;
import org.opensearch.search.pipeline.PipelineProcessingContext;
import org.opensearch.search.pipeline.StatefulSearchRequestProcessor;
import org.opensearch.search.pipeline.StatefulSearchResponseProcessor;
import org.opensearch.search.profile.SearchProfileShardResults;
import org.opensearch.search.sort.ScoreSortBuilder;
import org.opensearch.search.sort.SortBuilder;
import org.opensearch.search.sort.SortOrder;
import rerank.opensearch.Service.Failure;

/**
 * In the request phase it asks for the candidates instead of the user's page and leaves a {@link Plan}. In the response
 * phase it has the service score them and cuts out the user's page. Only the request processor has a configuration.
 */
final class RerankProcessor extends AbstractProcessor
        implements StatefulSearchRequestProcessor, StatefulSearchResponseProcessor {
    private static final Logger logger = LogManager.getLogger(RerankProcessor.class);
    private static final String PLAN = "rerank.plan";
    /** The object field that holds the features (rerank/engines/opensearch/layout.py). */
    private static final String FEATURES = "rerank_features.";
    /** Queries without a user's words. What other queries contain is for the service to find out. */
    private static final Set<String> WORDLESS = Set.of("match_all", "match_none", "term", "terms", "ids", "range", "exists",
        "prefix", "wildcard", "regexp", "fuzzy");

    private final RerankPlugin plugin;
    private final Config config;
    private final Service service;
    // Stack and indices -> the features that the service asked for last time; the first search sends none.
    private final Map<String, List<String>> wanted = new ConcurrentHashMap<>();

    RerankProcessor(RerankPlugin plugin, String tag, String description, boolean ignore, Config config, Service service) {
        super(tag, description, ignore);
        this.plugin = plugin;
        this.config = config;
        this.service = service;
    }

    /**
     * How to go on. outcome: passed or failed, with a reason, where nothing is left to do, else null.
     * from, size: the user's page. features: what the hits carry for the service; added: those fields nobody else asked for.
     */
    private record Plan(String outcome, String reason, RerankExt ext, RerankProcessor asker, int depth, int from, int size,
                        QueryBuilder query, String stack, String[] indices, String key, List<String> features,
                        List<String> added) {
        Plan ended(String outcome, String reason) {
            return new Plan(outcome, reason, ext, asker, depth, from, size, query, stack, indices, key, features, added);
        }

        <T> T[] page(T[] all) {
            int start = Math.min(from, all.length);
            return Arrays.copyOfRange(all, start, Math.min(start + size, all.length));
        }
    }

    @Override
    public String getType() {
        return RerankPlugin.NAME;
    }

    @Override
    public SearchRequest processRequest(SearchRequest request, PipelineProcessingContext context) {
        SearchSourceBuilder source = request.source();
        if (context.getAttribute(PLAN) != null) {
            return request; // the processor is twice in the pipeline
        }
        Plan plan = new Plan(null, null, take(source), this, 0, 0, 0, null, null, null, null, null, null);
        try {
            String reason = reasonToPass(request, source, plan.ext);
            plan = reason == null ? plan(request, source, plan.ext) : plan.ended("passed", reason);
        } catch (RuntimeException e) {
            logger.warn("a search could not be prepared for reranking", e);
            plan = plan.ended("failed", "error");
        }
        if (plan.outcome == null && service.isOpen()) {
            plan = plan.ended("failed", "breaker_open");
        }
        if (plan.outcome == null) {
            source.from(0).size(plan.depth);
            plan.added.forEach(source::docValueField);
        } else {
            plugin.stats.count(plan.outcome, plan.reason);
            if (plan.outcome.equals("failed") && config.failuresAreErrors()) {
                throw new OpenSearchStatusException("rerank: " + plan.reason, RestStatus.SERVICE_UNAVAILABLE);
            }
        }
        context.setAttribute(PLAN, plan);
        return request;
    }

    /** Take ext.rerank out of the request: a data node without the plugin could not read it. */
    private static RerankExt take(SearchSourceBuilder source) {
        List<SearchExtBuilder> all = source == null ? List.of() : source.ext();
        RerankExt found = new RerankExt(Map.of());
        for (SearchExtBuilder ext : all) {
            if (ext instanceof RerankExt ours) {
                found = ours;
                source.ext(all.stream().filter(other -> other != ours).toList());
            }
        }
        return found;
    }

    private static String reasonToPass(SearchRequest request, SearchSourceBuilder source, RerankExt ext) {
        boolean wordless = source == null || ext.text("query") == null
            && (source.query() == null || WORDLESS.contains(source.query().getName()));
        return ext.is("off") ? "off"
            : request.scroll() != null ? "scroll"
            : source != null && source.size() == 0 ? "size_0"
            : wordless ? "no_text_query"
            : source.searchAfter() != null ? "search_after"
            : source.collapse() != null ? "collapse"
            : source.slice() != null ? "slice"
            : sorted(source.sorts()) ? "sort"
            : source.storedFields() != null && source.storedFields().fetchFields() == false ? "no_ids" // _none_
            : null;
    }

    private static boolean sorted(List<SortBuilder<?>> sorts) {
        return sorts != null && sorts.isEmpty() == false
            && (sorts.size() > 1 || sorts.get(0) instanceof ScoreSortBuilder == false || sorts.get(0).order() != SortOrder.DESC);
    }

    private Plan plan(SearchRequest request, SearchSourceBuilder source, RerankExt ext) {
        int depth = config.depth();
        int mostFields = Integer.MAX_VALUE;
        for (Settings index : settings(request)) { // beyond these two, the search would become an error
            depth = Math.min(depth, IndexSettings.MAX_RESULT_WINDOW_SETTING.get(index));
            mostFields = Math.min(mostFields, IndexSettings.MAX_DOCVALUE_FIELDS_SEARCH_SETTING.get(index));
        }
        int from = Math.max(source.from(), 0);
        int size = source.size() < 0 ? 10 : source.size();
        String stack = ext.text("stack") == null ? config.stack() : ext.text("stack");
        String key = stack + "\n" + String.join(",", request.indices());
        List<String> features = wanted.getOrDefault(key, List.of());
        List<FieldAndFormat> own = source.docValueFields() == null ? List.of() : source.docValueFields();
        // What the user asks for himself must be neither fetched twice nor removed.
        List<String> added = features.stream().map(FEATURES::concat)
            .filter(field -> own.stream().noneMatch(asked -> Regex.simpleMatch(asked.field, field))).toList();
        if (added.isEmpty() == false && own.size() + added.size() > mostFields) {
            features = added = List.of();
        }
        Plan plan = new Plan(null, null, ext, this, depth, from, size, source.query(), stack, request.indices(), key,
            features, added);
        return (long) from + size > depth ? plan.ended("passed", "window") : plan;
    }

    private List<Settings> settings(SearchRequest request) {
        try {
            PointInTimeBuilder pit = request.source().pointInTimeBuilder();
            String[] names = pit == null
                ? request.indices() : SearchContextId.decode(plugin.writeables, pit.getId()).getActualIndices();
            ClusterState state = plugin.clusterService.state();
            return Arrays.stream(plugin.resolver.concreteIndices(state, request.indicesOptions(), true, names))
                .map(index -> state.metadata().getIndexSafe(index).getSettings()).toList();
        } catch (RuntimeException e) {
            return List.of(); // indices that are not there or on other clusters: the search itself says what is wrong
        }
    }

    private void remember(String key, List<String> features) {
        if (wanted.size() >= 1_000) {
            wanted.clear(); // lists of indices may be without end; the service tells again
        }
        wanted.put(key, features);
    }

    @Override
    public SearchResponse processResponse(SearchRequest request, SearchResponse response, PipelineProcessingContext context) {
        throw new UnsupportedOperationException("only processResponseAsync");
    }

    @Override
    public void processResponseAsync(SearchRequest request, SearchResponse response, PipelineProcessingContext context,
                                     ActionListener<SearchResponse> listener) {
        Plan plan = (Plan) context.getAttribute(PLAN);
        if (plan == null || plan.outcome != null) {
            boolean told = plan != null && plan.ext.is("explain");
            listener.onResponse(told ? copy(response, response.getHits(), plan, System.nanoTime()) : response);
            return;
        }
        long start = System.nanoTime();
        SearchHit[] hits = response.getHits().getHits();
        // The answer comes on another thread, which has another request's headers.
        var back = ContextPreservingActionListener.wrapPreservingContext(listener, plugin.threadContext);
        BiConsumer<Answer, Failure> done = (answer, failure) ->
            ActionListener.completeWith(back, () -> finish(plan, response, start, answer, failure));
        List<String> ids = ids(hits);
        byte[] body;
        try {
            body = body(plan, hits, ids, features(plan, hits));
        } catch (IOException | RuntimeException e) {
            logger.warn("a search could not be sent to the rerank service", e);
            done.accept(null, new Failure("error", e.toString()));
            return;
        }
        if (hits.length == 0) {
            done.accept(new Answer("no_hits", null, null), null);
            return;
        }
        plan.asker.service.call(body, 1_000_000 + 2_000 * hits.length, bytes -> Answer.read(bytes, ids), done);
    }

    /** The features of all hits; fields that the user did not ask for are removed from the hits. */
    private static Map<String, List<String>> features(Plan plan, SearchHit[] hits) {
        Map<String, List<String>> features = new LinkedHashMap<>();
        for (String feature : plan.features) {
            String field = FEATURES + feature;
            boolean ours = plan.added.contains(field);
            List<String> values = new ArrayList<>(hits.length);
            for (SearchHit hit : hits) {
                DocumentField found = ours ? hit.removeDocumentField(field) : hit.field(field);
                values.add(found == null || found.getValues().isEmpty() ? null : found.getValue().toString());
            }
            features.put(feature, values);
        }
        return features;
    }

    /** The ids, told apart where several indices or shards hold the same one. */
    private static List<String> ids(SearchHit[] hits) {
        Set<String> ids = new LinkedHashSet<>();
        for (SearchHit hit : hits) {
            String id = hit.getId();
            for (int n = 1; ids.add(id) == false; n++) {
                id = hit.getIndex() + "/" + hit.getId() + "/" + n;
            }
        }
        return List.copyOf(ids);
    }

    private static byte[] body(Plan plan, SearchHit[] hits, List<String> ids, Map<String, List<String>> features)
            throws IOException {
        Set<String> indices = new LinkedHashSet<>(Arrays.asList(plan.indices));
        if (indices.isEmpty()) { // all indices, or those of a point in time
            Arrays.stream(hits).forEach(hit -> indices.add(hit.getIndex()));
        }
        try (XContentBuilder json = JsonXContent.contentBuilder()) {
            json.startObject().field("stack", plan.stack).field("index", indices).field("query");
            if (plan.query == null) {
                json.nullValue();
            } else {
                plan.query.toXContent(json, ToXContent.EMPTY_PARAMS);
            }
            json.field("rerank", plan.ext.values.isEmpty() ? null : plan.ext.values).field("ids", ids).startArray("scores");
            for (SearchHit hit : hits) {
                json.value(hit.getScore());
            }
            return BytesReference.toBytes(BytesReference.bytes(json.endArray().field("features", features).endObject()));
        }
    }

    private SearchResponse finish(Plan plan, SearchResponse response, long start, Answer answer, Failure failure) {
        String outcome = failure != null ? "failed" : answer.passed() != null ? "passed" : "reranked";
        plan = plan.ended(outcome, failure != null ? failure.reason : answer.passed());
        plugin.stats.count(outcome, plan.reason);
        if (failure != null && plan.asker.config.failuresAreErrors()) {
            String message = "rerank: " + failure.reason + ": the service " + failure.getMessage();
            throw new OpenSearchStatusException(message, RestStatus.SERVICE_UNAVAILABLE);
        }
        if (answer != null && answer.features() != null) {
            plan.asker.remember(plan.key, answer.features());
        }
        SearchHits hits = response.getHits();
        hits = outcome.equals("reranked")
            ? reranked(plan, hits, answer.hits())
            : new SearchHits(plan.page(hits.getHits()), hits.getTotalHits(), hits.getMaxScore());
        return copy(response, hits, plan, start);
    }

    private static SearchHits reranked(Plan plan, SearchHits hits, List<Answer.Hit> best) {
        List<SearchHit> page = new ArrayList<>();
        for (Answer.Hit one : plan.page(best.toArray(Answer.Hit[]::new))) {
            SearchHit hit = hits.getHits()[one.position()];
            if (plan.ext.is("explain")) {
                Map<String, Object> told = new LinkedHashMap<>();
                told.put("first_stage", Map.of("rank", one.position() + 1, "score", hit.getScore()));
                told.put("signals", one.signals());
                hit.setDocumentField("_rerank", new DocumentField("_rerank", List.of(told)));
            }
            hit.score(one.score());
            page.add(hit);
        }
        return new SearchHits(page.toArray(SearchHit[]::new), hits.getTotalHits(), best.get(0).score());
    }

    private static SearchResponse copy(SearchResponse response, SearchHits hits, Plan plan, long start) {
        long nanos = System.nanoTime() - start;
        SearchResponseSections old = response.getInternalResponse();
        List<SearchExtBuilder> ext = new ArrayList<>(old.getSearchExtBuilders());
        if (plan.ext.is("explain")) {
            Map<String, Object> told = new LinkedHashMap<>(Map.of("outcome", plan.outcome, "took_ms", nanos / 1e6));
            if (plan.reason != null) {
                told.put("reason", plan.reason);
            }
            ext.add(new RerankExt(told));
        }
        return new SearchResponse(
            new InternalSearchResponse(hits, (InternalAggregations) old.aggregations(), old.suggest(),
                old.profile().isEmpty() ? null : new SearchProfileShardResults(old.profile()), old.timedOut(),
                old.terminatedEarly(), old.getNumReducePhases(), ext, old.getProcessorResult()),
            response.getScrollId(), response.getTotalShards(), response.getSuccessfulShards(), response.getSkippedShards(),
            response.getTook().millis() + TimeUnit.NANOSECONDS.toMillis(nanos), response.getPhaseTook(),
            response.getShardFailures(), response.getClusters(), response.pointInTimeId());
    }
}
