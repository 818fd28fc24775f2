package rerank.opensearch;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAccumulator;
import java.util.concurrent.atomic.LongAdder;
import org.opensearch.core.rest.RestStatus;
import org.opensearch.rest.BaseRestHandler;
import org.opensearch.rest.BytesRestResponse;
import org.opensearch.rest.RestRequest;
import org.opensearch.transport.client.node.NodeClient;

/** What became of the searches that this node coordinated, since it started: {@code GET /_rerank/stats}. */
final class Stats extends BaseRestHandler {
    private static final int REASONS = 100; // the service may name reasons of its own

    private final LongAdder reranked = new LongAdder();
    final LongAdder breakerOpened = new LongAdder();
    private final Map<String, LongAdder> passed = new ConcurrentHashMap<>();
    private final Map<String, LongAdder> failed = new ConcurrentHashMap<>();
    private final LongAdder calls = new LongAdder();
    private final LongAdder nanos = new LongAdder();
    private final LongAccumulator slowest = new LongAccumulator(Math::max, 0);

    void called(long took) {
        calls.increment();
        nanos.add(took);
        slowest.accumulate(took);
    }

    /** outcome: reranked, passed or failed; the last two have a reason. */
    void count(String outcome, String reason) {
        if (outcome.equals("reranked")) {
            reranked.increment();
            return;
        }
        Map<String, LongAdder> counters = outcome.equals("passed") ? passed : failed;
        String kept = counters.containsKey(reason) || counters.size() < REASONS ? reason : "other";
        counters.computeIfAbsent(kept, r -> new LongAdder()).increment();
    }

    private static Map<String, Long> sums(Map<String, LongAdder> counters) {
        Map<String, Long> sums = new TreeMap<>();
        counters.forEach((reason, counter) -> sums.put(reason, counter.sum()));
        return sums;
    }

    @Override
    public String getName() {
        return "rerank_stats";
    }

    @Override
    public List<Route> routes() {
        return List.of(new Route(RestRequest.Method.GET, "/_rerank/stats"));
    }

    @Override
    protected RestChannelConsumer prepareRequest(RestRequest request, NodeClient client) {
        Map<String, Object> stats = new TreeMap<>(Map.of("node", client.getLocalNodeId(), "reranked", reranked.sum(),
            "passed", sums(passed), "failed", sums(failed), "breaker_opened", breakerOpened.sum(),
            "calls", Map.of("count", calls.sum(), "total_ms", nanos.sum() / 1e6, "max_ms", slowest.get() / 1e6)));
        return channel -> channel.sendResponse(new BytesRestResponse(RestStatus.OK, channel.newBuilder().map(stats)));
    }
}
