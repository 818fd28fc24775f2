package rerank.opensearch;

import static org.opensearch.action.support.ContextPreservingActionListener.wrapPreservingContext;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.opensearch.ExceptionsHelper;
import org.opensearch.OpenSearchException;
import org.opensearch.OpenSearchStatusException;
import org.opensearch.action.StepListener;
import org.opensearch.action.search.*;
import org.opensearch.action.support.GroupedActionListener;
import org.opensearch.common.CheckedConsumer;
import org.opensearch.common.document.DocumentField;
import org.opensearch.core.action.ActionListener;
import org.opensearch.core.common.breaker.CircuitBreakingException;
import org.opensearch.core.rest.RestStatus;
import org.opensearch.core.tasks.TaskCancelledException;
import org.opensearch.index.query.QueryBuilders;
import org.opensearch.index.seqno.SequenceNumbers;
import org.opensearch.search.DocValueFormat;
import org.opensearch.search.SearchHit;
import org.opensearch.search.SearchHits;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.threadpool.Scheduler;
import rerank.opensearch.ScoringClient.Failure;

/**
 * The response phase of one search, in these steps: add the documents that the rankers of the stack retrieve, ask the service
 * for scores, cut the user's page, fetch its documents, and answer. If a document has changed in the meantime, the steps are
 * repeated with complete hits.
 */
final class Reranking {
    private static final Logger logger = LogManager.getLogger(Reranking.class);
    private static final Failure LATE = new Failure("timeout", "was not called: the search for documents of rankers took too long");

    private final SearchPlan plan;
    private final RerankPlugin plugin;
    private final ActionListener<SearchResponse> listener;
    private final long start = System.nanoTime();
    /** Of the first ten hits, those that a pipeline in shadow would move; null: it is not in shadow, or has no scores. */
    private Long shadowMoves;
    private long scoredAfter; // nanoseconds

    /** The candidates of a search: the response with them, the documents that were added, and both together. */
    private record Candidates(SearchResponse response, Added added, ScoringRequest hits) { }

    /** listener: gets the user's page, or the failure of the search, once. */
    Reranking(SearchPlan plan, RerankPlugin plugin, ActionListener<SearchResponse> listener) {
        this.plan = plan;
        this.plugin = plugin;
        this.listener = listener;
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

    private <T> ActionListener<T> then(CheckedConsumer<T, Exception> next) {
        return ending(listener, next, listener::onFailure);
    }

    /** response: of the search for the candidates. */
    void begin(SearchResponse response) {
        begin(response, false);
    }

    /** isAgain: whether the candidates were searched again, so that the added documents must be, too. */
    private void begin(SearchResponse response, boolean isAgain) {
        Exception unusable = unusable(response);
        if (unusable != null) {
            listener.onFailure(unusable);
        } else if (plan.retrieval == null) {
            score(response, Added.none(null));
        } else {
            add(response, isAgain);
        }
    }

    /** Why the search must be repeated, or null. */
    private Exception unusable(SearchResponse response) {
        Optional<Throwable> cause = Arrays.stream(response.getShardFailures()).map(ShardSearchFailure::getCause)
            .filter(AttemptFilter::mayComeFromFields).findAny();
        if (plan.isRepeated && cause.isPresent()) {
            return new OpenSearchStatusException("rerank: a shard failed", ExceptionsHelper.status(cause.get()), cause.get());
        }
        Optional<Throwable> lostNode = Arrays.stream(response.getShardFailures()).map(ShardSearchFailure::getCause)
            .filter(failure -> plan.attempt != null && plan.attempt.canRepeat(failure)).findAny();
        if (lostNode.isPresent()) {
            return new OpenSearchStatusException("rerank: a node has left", RestStatus.SERVICE_UNAVAILABLE, lostNode.get());
        }
        if (plan.groups != null && (plan.canGroup() && plan.groups.areSingle(response.getHits().getHits())) == false) {
            return new OpenSearchStatusException("rerank: the hits cannot be grouped", RestStatus.BAD_REQUEST);
        }
        return null;
    }

    /** Wait for the documents of rankers at most half of the time limit. */
    private void add(SearchResponse response, boolean isAgain) {
        StepListener<Added> added = new StepListener<>(); // takes the first answer
        Scheduler.ScheduledCancellable timer = plan.asker.service.after(plan.asker.config.retrievalTimeout(),
            () -> added.onResponse(Added.none("timeout")));
        ActionListener<Added> next = wrapPreservingContext(then(documents -> {
            timer.cancel();
            score(response, documents);
        }), plugin.threadContext);
        added.whenComplete(next::onResponse, next::onFailure);
        ActionListener<Added> searched = ActionListener.wrap(added::onResponse, e -> added.onResponse(Added.none("error")));
        if (isAgain) {
            plan.retrieval.again(searched);
        } else {
            plan.retrieval.added(searched);
        }
    }

    private void score(SearchResponse response, Added added) {
        ScoringRequest hits = ScoringRequest.of(plan, response.getHits().getHits(), added);
        plan.hasAdded = hits.hasAdded();
        Candidates candidates = new Candidates(response, added, hits);
        // The answer comes on a thread with the headers of another request.
        ActionListener<ScoringResponse> scored = wrapPreservingContext(ending(listener, answer -> finish(candidates, answer),
            e -> finish(candidates, ScoringResponse.failed(Failure.of(e)))), plugin.threadContext);
        ScoringResponse unsent = null; // the outcome of a search without a call
        byte[] body = null;
        int limit = plan.asker.config.timeout();
        int timeout = limit - usedMillis();
        try {
            byte[] query = plan.queryJson();
            unsent = hits.hits().isEmpty() ? ScoringResponse.passed("no_hits")
                : query.length > Protocol.LONGEST_QUERY ? ScoringResponse.passed("query_too_long")
                : timeout < limit / 10 ? ScoringResponse.failed(LATE) : null;
            body = unsent == null ? hits.body(query, plan.asker.service.firstLimit(timeout), plugin.memory) : null;
        } catch (CircuitBreakingException e) {
            unsent = ScoringResponse.failed(new Failure("memory", "was not called: the node has no memory for the call"));
        } catch (Failure e) {
            unsent = ScoringResponse.passed(e.reason);
        } catch (IOException | RuntimeException e) {
            logger.warn("a search could not be sent to the rerank service", e);
            unsent = ScoringResponse.failed(Failure.of(e));
        } finally {
            hits.strip(); // before anything can be answered
        }
        if (unsent == null) {
            call(body, hits.hits().size(), timeout, scored);
        } else {
            scored.onResponse(unsent);
        }
    }

    /** Send a body, and free its memory at the end. sent: number of hits. timeout: in milliseconds. */
    private void call(byte[] body, int sent, int timeout, ActionListener<ScoringResponse> scored) {
        CancellationWatch watch = new CancellationWatch(plan);
        ActionListener<ScoringResponse> done = ActionListener.runBefore(scored, () -> {
            watch.end();
            plugin.memory.addWithoutBreaking(-body.length);
        });
        ScoringClient.Request request = new ScoringClient.Request(Protocol.PATH, body, plan.turn, Math.max(timeout, 1),
            1_000_000 + 2_000 * sent, plan.isLongQuery());
        watch.begin(plan.asker.service.call(request,
            bytes -> ScoringResponse.read(bytes, sent, plan.breaksTies(), plan.minScore != null), done));
    }

    /** Milliseconds of the time limit that the addition of documents has taken: both calls of a search have one limit. */
    private int usedMillis() {
        if (plan.retrieval == null) {
            return 0;
        }
        long nanos = plan.retrieval.waited() + System.nanoTime() - start;
        return (int) Math.min(plan.asker.config.timeout(), TimeUnit.NANOSECONDS.toMillis(nanos));
    }

    private void finish(Candidates candidates, ScoringResponse answer) {
        if (plan.isCancelled()) {
            listener.onFailure(new TaskCancelledException("the search was cancelled"));
            return;
        }
        plan.end(answer.outcome(), answer.reason());
        plan.explained = answer.explained();
        plan.asker.remember(plan.key, answer);
        if (plan.outcome.equals("failed") && plan.asker.config.failuresAreErrors()) {
            plugin.stats.count(plan.outcome, plan.reason);
            listener.onFailure(new OpenSearchStatusException("rerank: " + plan.reason, RestStatus.SERVICE_UNAVAILABLE));
            return;
        }
        scoredAfter = System.nanoTime() - start;
        shadowMoves = null;
        if (plan.outcome.equals("reranked") && plan.asker.config.shadow()) {
            keepOrder(answer);
        }
        if (plan.retrieval != null) {
            plan.addedReport = addedReport(candidates, answer);
        }
        fetch(candidates, RankedPage.of(plan, candidates.response.getHits(), candidates.hits, candidates.added, answer));
    }

    /** A pipeline in shadow only reports the scores. */
    private void keepOrder(ScoringResponse answer) {
        List<ScoringResponse.Hit> hits = answer.hits();
        shadowMoves = IntStream.range(0, Math.min(10, hits.size())).filter(i -> hits.get(i).position() != i).count();
        plan.end("passed", "shadow");
        plan.explained.put("would_move", shadowMoves);
        if (plan.explained.remove("removed") instanceof Integer removed) {
            plan.explained.put("would_remove", removed);
        }
    }

    private static Map<String, Object> addedReport(Candidates candidates, ScoringResponse answer) {
        String reason = candidates.added.reason();
        if (reason != null) {
            return Map.of("documents", 0, "reason", reason);
        }
        int first = candidates.hits.first();
        Stream<ScoringResponse.Hit> hits = Stream.ofNullable(answer.hits()).flatMap(List::stream);
        return Map.of("documents", (int) hits.filter(hit -> hit.position() >= first).count());
    }

    /** Fetch the documents of the page, unless the candidates are complete. */
    private void fetch(Candidates candidates, RankedPage page) {
        List<SearchHit> chosen = page.documents(candidates.hits);
        if (plan.idsOnly == false || chosen.isEmpty()) {
            show(candidates, page, chosen);
            return;
        }
        documents(chosen, ending(listener, found -> {
            List<SearchHit> documents = new ArrayList<>();
            chosen.forEach(hit -> documents.add(found.get(Added.Place.of(hit))));
            if (documents.contains(null)) {
                fullHits(); // a document has changed
            } else {
                show(candidates, page, documents);
            }
        }, e -> {
            if (AttemptFilter.mayComeFromFields(e)) {
                fullHits();
            } else {
                listener.onFailure(e);
            }
        }));
    }

    /**
     * Search for the documents of the page, without a pipeline, in each of their shards: a search of one shard has only one
     * phase.
     */
    private void documents(List<SearchHit> page, ActionListener<Map<Added.Place, SearchHit>> found) {
        String requested = Objects.requireNonNullElse(plan.request.preference(), "");
        String preference = "|" + (requested.startsWith("_") ? requested : "_local"); // no word of the user can follow _shards
        Map<Integer, List<SearchHit>> byShard = page.stream().collect(Collectors.groupingBy(hit -> hit.getShard().getShardId().id()));
        ActionListener<SearchResponse> shardListener = new GroupedActionListener<>(
            ActionListener.map(found, answers -> answers.stream().flatMap(answer -> Arrays.stream(answer.getHits().getHits()))
                .collect(Collectors.toMap(Added.Place::of, hit -> hit))), byShard.size());
        byShard.forEach((shard, hits) -> {
            long[] numbers = hits.stream().mapToLong(SearchHit::getSeqNo).distinct().toArray();
            SearchSourceBuilder source = plan.documents(QueryBuilders.termsQuery("_seq_no", numbers))
                .size(numbers.length * plan.indices); // documents of other indices can have the same numbers
            SearchRequest request = new SearchRequest(plan.request).source(source).searchType(SearchType.DEFAULT)
                .preference("_shards:" + shard + preference);
            plugin.search(plan, request, shardListener);
        });
    }

    /** Search for the candidates again, as complete hits. */
    private void fullHits() {
        plan.idsOnly = false;
        plan.end(null, null);
        SearchRequest request = new SearchRequest(plan.sent).source(plan.asSent(plan.candidates()));
        plugin.search(plan, request, then(response -> begin(response, true)));
    }

    /** Answer with these documents of the page. */
    private void show(Candidates candidates, RankedPage page, List<SearchHit> documents) {
        count(page);
        for (int i = 0; i < documents.size(); i++) {
            show(page, page.hits().get(i), candidates.hits, documents.get(i));
        }
        if (page.hasMoreGroups()) {
            SearchRequest request = new SearchRequest(plan.sent).source(plan.pageAfter(page.ranked()));
            plugin.search(plan, request, then(more ->
                answer(candidates, page, Stream.concat(documents.stream(), Arrays.stream(more.getHits().getHits())))));
        } else {
            answer(candidates, page, documents.stream());
        }
    }

    private void answer(Candidates candidates, RankedPage page, Stream<SearchHit> documents) {
        SearchHits hits = new SearchHits(documents.toArray(SearchHit[]::new), page.total(), page.highest());
        listener.onResponse(plan.answer(candidates.response, hits, start));
    }

    /** Count the search, once: it may have been scored again after a document has changed. */
    private void count(RankedPage page) {
        plugin.stats.count(plan.outcome, plan.reason);
        plugin.stats.removed.add(page.removed());
        if (shadowMoves != null) {
            plugin.stats.shadowed(shadowMoves, scoredAfter);
        }
        if (plan.retrieval != null) {
            plugin.stats.retrieved((int) plan.addedReport.get("documents"), (String) plan.addedReport.get("reason"),
                plan.retrieval.took());
        }
    }

    /** Give a document the score of its hit, and what else a hit of the user's search has. */
    private void show(RankedPage page, ScoringResponse.Hit scored, ScoringRequest hits, SearchHit document) {
        SearchHit candidate = hits.at(scored.position());
        boolean isScored = page.isReranked() && scored.position() < hits.hits().size();
        if (plan.breaksTies()) {
            Object[] values = candidate.getSortValues().clone();
            DocValueFormat[] formats = new DocValueFormat[values.length];
            Arrays.fill(formats, DocValueFormat.RAW);
            values[0] = isScored ? (Object) scored.score() : values[0];
            document.sortValues(values, formats);
        }
        if (isScored && plan.ext.is("explain")) {
            Map<String, Object> explained = explanation(scored, candidate, scored.position() < hits.first());
            document.setDocumentField("_rerank", new DocumentField("_rerank", List.of(explained)));
        }
        if (Boolean.TRUE.equals(plan.user.seqNoAndPrimaryTerm()) == false) {
            document.setSeqNo(SequenceNumbers.UNASSIGNED_SEQ_NO);
            document.setPrimaryTerm(SequenceNumbers.UNASSIGNED_PRIMARY_TERM);
        }
        document.score(scored.score());
    }

    /** isOfQuery: whether the query has found the hit: an added document has no rank. */
    private static Map<String, Object> explanation(ScoringResponse.Hit scored, SearchHit candidate, boolean isOfQuery) {
        Map<String, Object> explained = new TreeMap<>();
        Map<String, Object> firstStage = new TreeMap<>(Map.of("score", candidate.getScore()));
        if (isOfQuery) {
            firstStage.put("rank", scored.position() + 1);
        }
        explained.put("first_stage", firstStage);
        explained.put("signals", scored.signals());
        if (scored.foundBy() != null) {
            explained.put("found_by", scored.foundBy());
        }
        if (scored.relevance() != null) {
            explained.put("relevance", scored.relevance());
        }
        return explained;
    }
}
