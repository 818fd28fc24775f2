package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.opensearch.Version;
import org.opensearch.action.search.SearchAction;
import org.opensearch.action.search.SearchPhaseExecutionException;
import org.opensearch.action.search.SearchRequest;
import org.opensearch.action.search.SearchResponse;
import org.opensearch.action.search.ShardSearchFailure;
import org.opensearch.cluster.node.DiscoveryNode;
import org.opensearch.cluster.service.ClusterService;
import org.opensearch.common.settings.ClusterSettings;
import org.opensearch.common.settings.Settings;
import org.opensearch.common.util.concurrent.ThreadContext;
import org.opensearch.core.action.ActionListener;
import org.opensearch.core.common.transport.TransportAddress;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.tasks.Task;
import org.opensearch.transport.NodeNotConnectedException;
import org.opensearch.transport.client.Client;

class AttemptFilterTest {
    private static final DiscoveryNode NODE =
        new DiscoveryNode("node", new TransportAddress(InetAddress.getLoopbackAddress(), 9300), Version.CURRENT);
    private final RerankPlugin plugin = new RerankPlugin(Settings.EMPTY);
    private final AttemptFilter filter = new AttemptFilter(plugin);
    private final List<ActionListener<SearchResponse>> repeated = new ArrayList<>();
    private final List<Object> outcomes = new ArrayList<>();
    private SearchPlan plan;

    private static Exception lostNode() {
        Exception cause = new NodeNotConnectedException(NODE, "connection already closed");
        return new SearchPhaseExecutionException("fetch", "", cause, ShardSearchFailure.EMPTY_ARRAY);
    }

    @BeforeEach
    @SuppressWarnings("unchecked")
    void makeNode() {
        ClusterSettings settings = new ClusterSettings(Settings.EMPTY, ClusterSettings.BUILT_IN_CLUSTER_SETTINGS);
        plugin.threadContext = new ThreadContext(Settings.EMPTY);
        plugin.clusterService = new ClusterService(Settings.EMPTY, settings, null) {
            @Override
            public DiscoveryNode localNode() {
                return NODE;
            }
        };
        plugin.node = (Client) Proxy.newProxyInstance(Client.class.getClassLoader(), new Class<?>[] {Client.class}, (proxy, method, arguments) -> {
            assertEquals("search", method.getName());
            repeated.add((ActionListener<SearchResponse>) arguments[1]);
            return null;
        });
    }

    /** Let a search for candidates end with a failure. */
    private void fail(Exception failure) {
        SearchRequest request = new SearchRequest("books").source(new SearchSourceBuilder());
        plan = SearchPlanTest.plan(new SearchSourceBuilder(), Map.of(), Map.of());
        Task task = new Task(1, "transport", SearchAction.NAME, "", null, Map.of());
        ActionListener<SearchResponse> listener = ActionListener.wrap(response -> outcomes.add("response"), outcomes::add);
        filter.apply(task, SearchAction.NAME, request, listener, (sameTask, action, sameRequest, inner) -> {
            AttemptFilter.Attempt.of(plugin.threadContext).begin(plan);
            inner.onFailure(failure);
        });
    }

    @Test
    void aSearchIsRepeatedWithTheHookWhenANodeHasLeft() {
        fail(lostNode());
        assertEquals(List.of(), outcomes);
        assertNull(plan.outcome); // so the request phase makes a new plan
        plan.isAnswered = true;
        repeated.get(0).onResponse(null);
        assertEquals(List.of("response"), outcomes);
    }

    @Test
    void aSearchIsRepeatedOnlyOnce() {
        fail(lostNode());
        Exception second = lostNode();
        repeated.get(0).onFailure(second);
        assertEquals(List.of(second), outcomes);
        assertEquals(1, repeated.size());
    }

    @Test
    void aSearchThatFailsOtherwiseIsNotRepeated() {
        Exception failure = new SearchPhaseExecutionException("query", "", new IllegalStateException("disk"), ShardSearchFailure.EMPTY_ARRAY);
        fail(failure);
        assertEquals(List.of(failure), outcomes);
        assertEquals(List.of(), repeated);
    }
}
