package rerank.opensearch;

import java.util.List;
import java.util.Map;
import org.opensearch.core.rest.RestStatus;
import org.opensearch.rest.*;
import org.opensearch.transport.client.node.NodeClient;

/** {@code GET /_plugins/_rerank_stack/stats}. */
final class StatsHandler extends BaseRestHandler {
    private final Stats counters;

    StatsHandler(Stats counters) {
        this.counters = counters;
    }

    @Override
    public String getName() {
        return "rerank_stack_stats";
    }

    @Override
    public List<Route> routes() {
        return List.of(new Route(RestRequest.Method.GET, "/_plugins/_rerank_stack/stats"));
    }

    @Override
    protected RestChannelConsumer prepareRequest(RestRequest request, NodeClient client) {
        Map<String, Object> stats = counters.read(client.getLocalNodeId());
        return channel -> channel.sendResponse(new BytesRestResponse(RestStatus.OK, channel.newBuilder().map(stats)));
    }
}
