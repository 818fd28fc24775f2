package rerank.opensearch;

import static org.opensearch.action.support.ContextPreservingActionListener.wrapPreservingContext;

import java.io.IOException;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.apache.lucene.search.TotalHits;
import org.opensearch.ExceptionsHelper;
import org.opensearch.OpenSearchException;
import org.opensearch.OpenSearchStatusException;
import org.opensearch.action.StepListener;
import org.opensearch.action.search.*;
import org.opensearch.action.support.GroupedActionListener;
import org.opensearch.cluster.ClusterState;
import org.opensearch.cluster.metadata.IndexMetadata;
import org.opensearch.common.CheckedConsumer;
import org.opensearch.common.document.DocumentField;
import org.opensearch.core.action.ActionListener;
import org.opensearch.core.common.breaker.CircuitBreakingException;
import org.opensearch.core.rest.RestStatus;
import org.opensearch.core.tasks.TaskCancelledException;
import org.opensearch.index.query.QueryBuilders;
import org.opensearch.index.seqno.SequenceNumbers;
import org.opensearch.search.DocValueFormat;
import org.opensearch.search.SearchExtBuilder;
import org.opensearch.search.SearchHit;
import org.opensearch.search.SearchHits;
import org.opensearch.search.aggregations.InternalAggregations;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.search.internal.InternalSearchResponse;
import org.opensearch.search.pipeline.*;
import org.opensearch.search.profile.SearchProfileShardResults;
import org.opensearch.threadpool.Scheduler;
import rerank.opensearch.ScoringClient.Failure;

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
    // Stack and indices -> the fields that the service requested last. The first search sends only ids and scores.
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
        SearchPlan failed = attempt == null ? null : attempt.plan(); // it has removed the options from the search
        SearchPlan plan = new SearchPlan(request, failed == null ? RerankExt.take(request.source()) : failed.ext, this);
        context.setAttribute(PLAN, plan);
        if (failed != null) {
            plan.end("failed", failed.reason);
            return request;
        }
        try {
            List<IndexMetadata> indices = indices(request);
            plan.groups = Groups.of(plan.user, indices);
            plan.prepare(config, indices.stream().map(IndexMetadata::getSettings).toList());
            if (config.retrieves() && plan.user != null && Boolean.FALSE.equals(plan.ext.values.get("retrieve")) == false) {
                plan.retrieval = new Retrieval(plan, plugin);
            }
            String reason = plan.reasonToPass(), unreachable = service.unreachable();
            if (reason == null && unreachable == null) {
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
        if (isFirst == false || plan.retrieval == null || plan.outcome != null) {
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
            listener.onResponse(isReported ? copy(response, response.getHits(), plan, System.nanoTime()) : response);
        } else {
            plan.isRepeated &= isIgnoreFailure() == false;
            rerank(plan, response, false, System.nanoTime(), ActionListener.notifyOnce(ActionListener.wrap(answer -> {
                plan.isAnswered = true;
                listener.onResponse(answer);
            }, listener::onFailure)));
        }
    }

    /** isAgain: whether the candidates were searched again, so that the added documents must be, too. */
    private void rerank(SearchPlan plan, SearchResponse response, boolean isAgain, long start, ActionListener<SearchResponse> listener) {
        SearchHit[] found = response.getHits().getHits();
        Optional<Throwable> cause = Arrays.stream(response.getShardFailures()).map(ShardSearchFailure::getCause)
            .filter(AttemptFilter::mayComeFromFields).findAny();
        if (plan.isRepeated && cause.isPresent()) {
            listener.onFailure(new OpenSearchStatusException("rerank: a shard failed", ExceptionsHelper.status(cause.get()), cause.get()));
            return;
        }
        if (plan.groups != null && (plan.canGroup() && plan.groups.areSingle(found)) == false) {
            listener.onFailure(new OpenSearchStatusException("rerank: the hits cannot be grouped", RestStatus.BAD_REQUEST));
            return;
        }
        if (plan.retrieval == null) {
            rerank(plan, response, Added.none(null), start, listener);
            return;
        }
        StepListener<Added> added = new StepListener<>();
        Scheduler.ScheduledCancellable timer = plan.asker.service.after(Math.max(plan.asker.config.timeout() / 2, 1),
            () -> added.onResponse(Added.none("timeout")));
        ActionListener<Added> joined = wrapPreservingContext(ending(listener, documents -> {
            timer.cancel();
            rerank(plan, response, documents, start, listener);
        }, listener::onFailure), plugin.threadContext);
        added.whenComplete(joined::onResponse, joined::onFailure);
        ActionListener<Added> searched = ActionListener.wrap(added::onResponse, e -> added.onResponse(Added.none("error")));
        if (isAgain) {
            plan.retrieval.again(searched);
        } else {
            plan.retrieval.added(searched);
        }
    }

    private void rerank(SearchPlan plan, SearchResponse response, Added added, long start, ActionListener<SearchResponse> listener) {
        SearchHit[] found = response.getHits().getHits();
        ScoringRequest hits = ScoringRequest.of(plan, found, added);
        plan.hasAdded = hits.hasAdded();
        // The answer comes on a thread with the headers of another request.
        ActionListener<ScoringResponse> scored = wrapPreservingContext(ending(listener,
            answer -> finish(plan, response, hits, added, start, answer, listener),
            e -> finish(plan, response, hits, added, start, ScoringResponse.failed(Failure.of(e)), listener)), plugin.threadContext);
        if (hits.hits().isEmpty()) {
            scored.onResponse(ScoringResponse.passed("no_hits"));
            return;
        }
        byte[] query, body;
        try {
            query = hits.query();
            body = query.length > Protocol.LONGEST_QUERY ? null : hits.body(query, plan.asker.config.timeout(), plugin.memory);
        } catch (CircuitBreakingException e) {
            scored.onFailure(new Failure("memory", "was not called: the node has no memory for the call"));
            return;
        } catch (Failure e) {
            scored.onResponse(ScoringResponse.passed(e.reason));
            return;
        } catch (IOException | RuntimeException e) {
            logger.warn("a search could not be sent to the rerank service", e);
            scored.onFailure(e);
            return;
        } finally {
            hits.strip();
        }
        if (body == null) {
            scored.onResponse(ScoringResponse.passed("query_too_long"));
            return;
        }
        boolean isLong = query.length > ScoringRequest.LONG_QUERY || Objects.toString(plan.ext.text("query"), "").length() > ScoringRequest.LONG_QUERY;
        int timeout = plan.asker.config.timeout();
        if (plan.retrieval != null) { // one time limit for both calls
            long nanos = plan.retrieval.waited() + System.nanoTime() - start;
            timeout -= (int) Math.min(timeout, TimeUnit.NANOSECONDS.toMillis(nanos));
        }
        if (timeout < plan.asker.config.timeout() / 10) {
            plugin.memory.addWithoutBreaking(-body.length);
            scored.onFailure(new Failure("timeout", "was not called: the search for documents of rankers took too long"));
            return;
        }
        ScoringClient.Request call = new ScoringClient.Request(Protocol.PATH, body, Math.max(timeout, 1), 1_000_000 + 2_000 * hits.hits().size(), isLong);
        plan.asker.service.call(call,
            bytes -> ScoringResponse.read(bytes, hits.hits().size(), plan.breaksTies(), plan.minScore != null),
            ActionListener.runBefore(scored, () -> plugin.memory.addWithoutBreaking(-body.length)));
    }

    /** A listener whose failures, also an Error, end the search. */
    static <T> ActionListener<T> ending(ActionListener<?> search, CheckedConsumer<T, Exception> then, Consumer<Exception> otherwise) {
        return ActionListener.wrap(result -> {
            try {
                then.accept(result);
            } catch (Error e) {
                throw new OpenSearchException("rerank: " + e, e);
            }
        }, failure -> {
            try {
                otherwise.accept(failure);
            } catch (Throwable e) {
                logger.warn("a search could not be ended after [" + failure + "]", e);
                search.onFailure(new OpenSearchException("rerank: " + e, e));
            }
        });
    }

    /**
     * Search for the documents of the page, without a pipeline, in each of their shards: a search of one shard has only one
     * phase.
     */
    private void documents(SearchPlan plan, List<SearchHit> page, ActionListener<Map<Added.Place, SearchHit>> listener) {
        String requested = Objects.requireNonNullElse(plan.request.preference(), "");
        String preference = "|" + (requested.startsWith("_") ? requested : "_local"); // no word of the user can follow _shards
        Map<Integer, List<SearchHit>> byShard = page.stream().collect(Collectors.groupingBy(hit -> hit.getShard().getShardId().id()));
        ActionListener<SearchResponse> shardListener = new GroupedActionListener<>(ActionListener.map(listener, answers -> answers.stream()
            .flatMap(answer -> Arrays.stream(answer.getHits().getHits())).collect(Collectors.toMap(Added.Place::of, hit -> hit))), byShard.size());
        byShard.forEach((shard, hits) -> {
            long[] numbers = hits.stream().mapToLong(SearchHit::getSeqNo).distinct().toArray();
            SearchSourceBuilder source = plan.documents(QueryBuilders.termsQuery("_seq_no", numbers))
                .size(numbers.length * plan.indices); // documents of other indices can have the same numbers
            SearchRequest request = new SearchRequest(plan.request).source(source).searchType(SearchType.DEFAULT)
                .preference("_shards:" + shard + preference);
            search(plan, request, shardListener);
        });
    }

    /** Search for the candidates again, as full hits. */
    private void fullHits(SearchPlan plan, long start, ActionListener<SearchResponse> listener) {
        plan.idsOnly = false;
        plan.end(null, null);
        SearchRequest request = new SearchRequest(plan.sent).source(plan.asSent(plan.candidates()));
        search(plan, request, ending(listener, r -> rerank(plan, r, true, start, listener), listener::onFailure));
    }

    /** A search without a pipeline, which ends when the search of the user is cancelled. */
    void search(SearchPlan plan, SearchRequest request, ActionListener<SearchResponse> listener) {
        request.pipeline("_none");
        plugin.node.search(plan.attempt == null ? request : plan.attempt.child(request, plugin), listener);
    }

    private void finish(SearchPlan plan, SearchResponse response, ScoringRequest hits, Added added, long start, ScoringResponse answer,
                        ActionListener<SearchResponse> listener) {
        if (plan.attempt != null && plan.attempt.isCancelled()) {
            listener.onFailure(new TaskCancelledException("the search was cancelled"));
            return;
        }
        plan.end(answer.outcome(), answer.reason());
        plan.explained = answer.explained();
        if (answer.requested() != null) {
            plan.asker.remember(plan.key, answer.requested());
        } else if (CircuitBreaker.isRefused(answer.reason())) {
            plan.asker.lastRequested.remove(plan.key); // it may now be an older service
        }
        if (plan.outcome.equals("failed") && plan.asker.config.failuresAreErrors()) {
            plugin.stats.count(plan.outcome, plan.reason);
            listener.onFailure(new OpenSearchStatusException("rerank: " + plan.reason, RestStatus.SERVICE_UNAVAILABLE));
            return;
        }
        if (plan.outcome.equals("reranked") && plan.asker.config.shadow()) {
            long moved = IntStream.range(0, Math.min(10, answer.hits().size())).filter(i -> answer.hits().get(i).position() != i).count();
            plan.end("passed", "shadow");
            plan.explained.put("would_move", moved);
            if (plan.explained.remove("removed") instanceof Integer removed) {
                plan.explained.put("would_remove", removed);
            }
            plugin.stats.shadowed(moved, System.nanoTime() - start);
        }
        boolean reranked = plan.outcome.equals("reranked");
        if (plan.retrieval != null) {
            int documents = answer.hits() == null ? 0 : (int) answer.hits().stream().filter(hit -> hit.position() >= hits.first()).count();
            plan.addedReport = added.reason() == null ? Map.of("documents", documents) : Map.of("documents", 0, "reason", added.reason());
            plugin.stats.retrieved(documents, added.reason(), plan.retrieval.took());
        }
        boolean removes = reranked && plan.minScore != null;
        // Hits after the candidates have no probability.
        List<ScoringResponse.Hit> best = hits.ranked(reranked ? answer.hits() : null, removes == false);
        List<ScoringResponse.Hit> ranked = plan.groups == null ? best : plan.groups.first(best, hits);
        List<ScoringResponse.Hit> page = plan.page(ranked);
        boolean hasMoreGroups = plan.groups != null && removes == false && hits.hits().size() >= plan.depth && plan.from + plan.size > ranked.size();
        float highest = reranked == false ? response.getHits().getMaxScore() : best.isEmpty() ? Float.NaN : best.get(0).score();
        TotalHits counted = response.getHits().getTotalHits(); // null: not requested
        TotalHits total = removes && counted != null ? new TotalHits(best.size(), TotalHits.Relation.EQUAL_TO)
            : plan.total(counted, (int) best.stream().filter(hit -> hits.isUnmatched(hit, added)).count());
        ActionListener<List<SearchHit>> done = ending(listener, documents -> {
            plugin.stats.count(plan.outcome, plan.reason);
            plugin.stats.removed.add(removes ? hits.hits().size() - best.size() : 0);
            for (int i = 0; i < page.size(); i++) {
                show(plan, page.get(i), hits, documents.get(i), reranked);
            }
            if (hasMoreGroups == false) {
                SearchHit[] all = documents.toArray(SearchHit[]::new);
                listener.onResponse(copy(response, new SearchHits(all, total, highest), plan, start));
                return;
            }
            search(plan, new SearchRequest(plan.sent).source(plan.pageAfter(ranked.size())), ending(listener, more -> {
                SearchHit[] all = Stream.concat(documents.stream(), Arrays.stream(more.getHits().getHits())).toArray(SearchHit[]::new);
                listener.onResponse(copy(response, new SearchHits(all, total, highest), plan, start));
            }, listener::onFailure));
        }, listener::onFailure);
        List<SearchHit> chosen = page.stream().map(hit -> hits.at(hit.position())).toList();
        if (plan.idsOnly == false || chosen.isEmpty()) {
            done.onResponse(chosen);
            return;
        }
        documents(plan, chosen, ending(listener, found -> {
            List<SearchHit> documents = new ArrayList<>();
            chosen.forEach(hit -> documents.add(found.get(Added.Place.of(hit))));
            if (documents.contains(null)) {
                fullHits(plan, start, listener); // a document has changed
            } else {
                done.onResponse(documents);
            }
        }, e -> {
            if (AttemptFilter.mayComeFromFields(e)) {
                fullHits(plan, start, listener);
            } else {
                listener.onFailure(e);
            }
        }));
    }

    private static void show(SearchPlan plan, ScoringResponse.Hit scored, ScoringRequest hits, SearchHit hit, boolean reranked) {
        SearchHit candidate = hits.at(scored.position());
        boolean moved = reranked && scored.position() < hits.hits().size();
        if (plan.breaksTies()) {
            Object[] values = candidate.getSortValues().clone();
            DocValueFormat[] formats = new DocValueFormat[values.length];
            Arrays.fill(formats, DocValueFormat.RAW);
            values[0] = moved ? (Object) scored.score() : values[0];
            hit.sortValues(values, formats);
        }
        if (moved && plan.ext.is("explain")) {
            Map<String, Object> explained = new TreeMap<>();
            boolean isFirst = scored.position() < hits.first(); // an added document has no rank
            explained.put("first_stage", isFirst ? Map.of("rank", scored.position() + 1, "score", candidate.getScore())
                : Map.of("score", candidate.getScore()));
            if (scored.foundBy() != null) {
                explained.put("found_by", scored.foundBy());
            }
            explained.put("signals", scored.signals());
            if (scored.relevance() != null) {
                explained.put("relevance", scored.relevance());
            }
            hit.setDocumentField("_rerank", new DocumentField("_rerank", List.of(explained)));
        }
        if (Boolean.TRUE.equals(plan.user.seqNoAndPrimaryTerm()) == false) {
            hit.setSeqNo(SequenceNumbers.UNASSIGNED_SEQ_NO);
            hit.setPrimaryTerm(SequenceNumbers.UNASSIGNED_PRIMARY_TERM);
        }
        hit.score(scored.score());
    }

    void remember(UUID key, ScoringResponse.RequestedFields requested) {
        if (lastRequested.size() >= 1_000) {
            lastRequested.clear(); // the number of index lists is unlimited; the service requests again
        }
        lastRequested.put(key, requested);
    }

    private static SearchResponse copy(SearchResponse response, SearchHits hits, SearchPlan plan, long start) {
        long nanos = System.nanoTime() - start;
        SearchResponseSections old = response.getInternalResponse();
        List<SearchExtBuilder> ext = new ArrayList<>(old.getSearchExtBuilders());
        if (plan.isReported()) {
            Map<String, Object> explained = new TreeMap<>(plan.explained);
            explained.putAll(Map.of("outcome", plan.outcome, "took_ms", nanos / 1e6));
            if (plan.reason != null) {
                explained.put("reason", plan.reason);
            }
            if (plan.addedReport.isEmpty() == false) {
                explained.put("added", plan.addedReport);
            }
            ext.add(new RerankExt(explained));
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
