package rerank.opensearch;

import java.io.IOException;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.WeakHashMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAccumulator;
import java.util.concurrent.atomic.LongAdder;
import org.opensearch.core.rest.RestStatus;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.rest.BaseRestHandler;
import org.opensearch.rest.BytesRestResponse;
import org.opensearch.rest.RestRequest;
import org.opensearch.transport.client.node.NodeClient;

/** What became of the searches that this node coordinated, since it started: {@code GET /_rerank/stats}. */
final class Stats extends BaseRestHandler {
    private static final int REASONS = 100; // the service may name reasons of its own

    private final LongAdder reranked = new LongAdder();
    private final Map<String, LongAdder> passed = new ConcurrentHashMap<>();
    private final Map<String, LongAdder> failed = new ConcurrentHashMap<>();
    private final LongAdder opened = new LongAdder();
    private final LongAdder calls = new LongAdder();
    private final LongAdder nanos = new LongAdder();
    private final LongAccumulator slowest = new LongAccumulator(Math::max, 0);
    // Services of pipelines that are gone leave by themselves.
    private final Set<Service> services = Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap<>()));

    void reranked() {
        reranked.increment();
    }

    void passed(String reason) {
        count(passed, reason);
    }

    void failed(String reason) {
        count(failed, reason);
    }

    void opened() {
        opened.increment();
    }

    void called(long took) {
        calls.increment();
        nanos.add(took);
        slowest.accumulate(took);
    }

    void add(Service service) {
        services.add(service);
    }

    private static void count(Map<String, LongAdder> counters, String reason) {
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
    protected RestChannelConsumer prepareRequest(RestRequest request, NodeClient client) throws IOException {
        String node = client.getLocalNodeId();
        return channel -> {
            try (XContentBuilder builder = channel.newBuilder()) {
                builder.startObject().field("node", node);
                builder.field("reranked", reranked.sum());
                builder.field("passed", sums(passed)).field("failed", sums(failed));
                builder.startObject("breaker").field("opened", opened.sum());
                synchronized (services) {
                    builder.field("open", services.stream().filter(Service::isOpen).map(s -> s.url).distinct().toList());
                }
                builder.endObject();
                builder.startObject("calls").field("count", calls.sum());
                builder.field("total_ms", nanos.sum() / 1e6);
                builder.field("max_ms", slowest.get() / 1e6);
                channel.sendResponse(new BytesRestResponse(RestStatus.OK, builder.endObject().endObject()));
            }
        };
    }
}
