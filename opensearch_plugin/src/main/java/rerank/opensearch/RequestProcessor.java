package rerank.opensearch;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.opensearch.OpenSearchStatusException;
import org.opensearch.action.search.SearchRequest;
import org.opensearch.cluster.ClusterState;
import org.opensearch.common.regex.Regex;
import org.opensearch.common.settings.Settings;
import org.opensearch.core.index.Index;
import org.opensearch.core.rest.RestStatus;
import org.opensearch.index.IndexSettings;
import org.opensearch.index.query.QueryBuilder;
import org.opensearch.search.SearchExtBuilder;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.search.fetch.subphase.FieldAndFormat;
import org.opensearch.search.pipeline.AbstractProcessor;
import org.opensearch.search.pipeline.PipelineProcessingContext;
import org.opensearch.search.pipeline.StatefulSearchRequestProcessor;
import org.opensearch.search.sort.ScoreSortBuilder;
import org.opensearch.search.sort.SortBuilder;
import org.opensearch.search.sort.SortOrder;

/** Asks for the candidates instead of the user's page, and leaves a {@link Plan} for the response processor. */
final class RequestProcessor extends AbstractProcessor implements StatefulSearchRequestProcessor {
    private static final Logger logger = LogManager.getLogger(RequestProcessor.class);
    /** The object field that holds the features (rerank/engines/opensearch/layout.py). */
    private static final String FEATURES = "rerank_features.";
    /** Queries without words of a user. What is inside other queries is for the service to find out. */
    private static final Set<String> WORDLESS = Set.of(
        "match_all", "match_none", "term", "terms", "ids", "range", "exists", "prefix", "wildcard", "regexp", "fuzzy"
    );
    private static final int REMEMBERED = 1_000;

    private final RerankPlugin plugin;
    private final Config config;
    private final Service service;
    // Stack and indices -> the features that the service asked for. Guessable only by asking, so the first search sends none.
    private final Map<String, List<String>> wanted = new ConcurrentHashMap<>();

    RequestProcessor(RerankPlugin plugin, String tag, String description, boolean ignoreFailure, Config config, Service service) {
        super(tag, description, ignoreFailure);
        this.plugin = plugin;
        this.config = config;
        this.service = service;
    }

    @Override
    public String getType() {
        return RerankPlugin.NAME;
    }

    @Override
    public SearchRequest processRequest(SearchRequest request, PipelineProcessingContext context) {
        if (context.getAttribute(Plan.KEY) != null) {
            return request; // the processor is twice in the pipeline
        }
        SearchSourceBuilder source = request.source();
        RerankExt ext = take(source);
        String passed;
        Plan plan = null;
        try {
            passed = reasonToPass(request, source, ext);
            if (passed == null) {
                plan = plan(request, source, ext);
                passed = plan == null ? "window" : null;
            }
        } catch (RuntimeException e) {
            logger.warn("a search could not be prepared for reranking", e);
            passed = null;
        }
        if (passed != null) {
            plugin.stats.passed(passed);
            context.setAttribute(Plan.KEY, Plan.skip("passed", passed, ext));
        } else if (plan == null || service.isOpen()) {
            String reason = plan == null ? "error" : "breaker_open";
            plugin.stats.failed(reason);
            if (config.failuresAreErrors()) {
                throw new OpenSearchStatusException("rerank: " + reason, RestStatus.SERVICE_UNAVAILABLE);
            }
            context.setAttribute(Plan.KEY, Plan.skip("failed", reason, ext));
        } else {
            source.from(0).size(plan.depth());
            plan.added().forEach(source::docValueField);
            context.setAttribute(Plan.KEY, plan);
        }
        return request;
    }

    /** Take ext.rerank out of the request: a data node without the plugin could not read it. */
    private static RerankExt take(SearchSourceBuilder source) {
        RerankExt found = new RerankExt(Map.of());
        if (source != null && source.ext() != null) {
            List<SearchExtBuilder> others = new ArrayList<>();
            for (SearchExtBuilder ext : source.ext()) {
                if (ext instanceof RerankExt ours) {
                    found = ours;
                } else {
                    others.add(ext);
                }
            }
            source.ext(others);
        }
        return found;
    }

    private static String reasonToPass(SearchRequest request, SearchSourceBuilder source, RerankExt ext) {
        QueryBuilder query = source == null ? null : source.query();
        if (ext.is("off")) {
            return "off";
        } else if (request.scroll() != null) {
            return "scroll";
        } else if (source != null && source.size() == 0) {
            return "size_0";
        } else if (source == null || ext.text("query") == null && (query == null || WORDLESS.contains(query.getName()))) {
            return "no_text_query";
        } else if (source.searchAfter() != null) {
            return "search_after";
        } else if (source.collapse() != null) {
            return "collapse";
        } else if (source.slice() != null) {
            return "slice";
        } else if (sorted(source.sorts())) {
            return "sort";
        } else if (source.storedFields() != null && source.storedFields().fetchFields() == false) {
            return "no_ids"; // stored_fields: _none_
        }
        return null;
    }

    private static boolean sorted(List<SortBuilder<?>> sorts) {
        boolean byScore = sorts == null
            || sorts.isEmpty()
            || sorts.size() == 1 && sorts.get(0) instanceof ScoreSortBuilder score && score.order() == SortOrder.DESC;
        return byScore == false;
    }

    /** Return null where the user's page reaches beyond the candidates. */
    private Plan plan(SearchRequest request, SearchSourceBuilder source, RerankExt ext) {
        int depth = config.depth();
        int mostFields = Integer.MAX_VALUE;
        for (Settings index : settings(request)) {
            depth = Math.min(depth, IndexSettings.MAX_RESULT_WINDOW_SETTING.get(index));
            mostFields = Math.min(mostFields, IndexSettings.MAX_DOCVALUE_FIELDS_SEARCH_SETTING.get(index));
        }
        int from = Math.max(source.from(), 0);
        int size = source.size() < 0 ? 10 : source.size();
        if ((long) from + size > depth) {
            return null;
        }
        String stack = ext.text("stack") != null ? ext.text("stack") : config.stack();
        String key = stack + "\n" + String.join(",", request.indices());
        List<String> features = wanted.getOrDefault(key, List.of());
        List<FieldAndFormat> asked = source.docValueFields() == null ? List.of() : source.docValueFields();
        // What the user asks for himself is neither fetched twice nor removed.
        List<String> added = features.stream()
            .map(RequestProcessor::field)
            .filter(field -> asked.stream().noneMatch(own -> Regex.simpleMatch(own.field, field)))
            .toList();
        if (added.isEmpty() == false && asked.size() + added.size() > mostFields) {
            features = List.of(); // too many fields would be an error; the service does without
            added = List.of();
        }
        return new Plan(
            null, null, ext, config, service, depth, from, size, source.query(), stack, request.indices(), features, added,
            fields -> remember(key, fields)
        );
    }

    private List<Settings> settings(SearchRequest request) {
        try {
            ClusterState state = plugin.clusterService.state();
            List<Settings> settings = new ArrayList<>();
            for (Index index : plugin.resolver.concreteIndices(state, request)) {
                settings.add(state.metadata().getIndexSafe(index).getSettings());
            }
            return settings;
        } catch (RuntimeException e) {
            return List.of(); // indices that are not there or on other clusters: the search itself says what is wrong
        }
    }

    private void remember(String key, List<String> features) {
        if (features.equals(wanted.get(key)) == false) {
            if (wanted.size() >= REMEMBERED) {
                wanted.clear(); // lists of indices without end; learned again by asking
            }
            wanted.put(key, features);
        }
    }

    static String field(String feature) {
        return FEATURES + feature;
    }
}
