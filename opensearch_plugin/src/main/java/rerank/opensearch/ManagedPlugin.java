package rerank.opensearch;

import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.opensearch.cluster.metadata.IndexNameExpressionResolver;
import org.opensearch.cluster.service.ClusterService;
import org.opensearch.common.settings.Setting;
import org.opensearch.common.settings.Settings;
import org.opensearch.core.common.io.stream.NamedWriteableRegistry;
import org.opensearch.core.xcontent.NamedXContentRegistry;
import org.opensearch.env.Environment;
import org.opensearch.env.NodeEnvironment;
import org.opensearch.plugins.Plugin;
import org.opensearch.plugins.SearchPipelinePlugin;
import org.opensearch.repositories.RepositoriesService;
import org.opensearch.script.ScriptService;
import org.opensearch.search.pipeline.Processor;
import org.opensearch.search.pipeline.SearchRequestProcessor;
import org.opensearch.search.pipeline.SearchResponseProcessor;
import org.opensearch.threadpool.ExecutorBuilder;
import org.opensearch.threadpool.ThreadPool;
import org.opensearch.transport.client.Client;
import org.opensearch.watcher.ResourceWatcherService;

/**
 * The processor {@code rerank_stack} without the other parts of {@link RerankPlugin}, for managed clusters: no options in
 * {@code ext.rerank_stack}, no endpoint of counters, no repetition of failed searches, no reload of the token, no circuit breaker.
 */
public final class ManagedPlugin extends Plugin implements SearchPipelinePlugin {
    private final RerankPlugin plugin;

    public ManagedPlugin(Settings settings) {
        plugin = new RerankPlugin(settings);
    }

    @Override
    public List<Setting<?>> getSettings() {
        return plugin.getSettings();
    }

    @Override
    public List<ExecutorBuilder<?>> getExecutorBuilders(Settings settings) {
        return plugin.getExecutorBuilders(settings);
    }

    @Override
    public Collection<Object> createComponents(Client client, ClusterService clusterService, ThreadPool threadPool,
            ResourceWatcherService watcher, ScriptService scripts, NamedXContentRegistry xContent, Environment environment,
            NodeEnvironment nodeEnvironment, NamedWriteableRegistry writeables, IndexNameExpressionResolver resolver,
            Supplier<RepositoriesService> repositories) {
        return plugin.createComponents(client, clusterService, threadPool, watcher, scripts, xContent, environment, nodeEnvironment,
            writeables, resolver, repositories);
    }

    @Override
    public Map<String, Processor.Factory<SearchRequestProcessor>> getRequestProcessors(Parameters parameters) {
        return plugin.getRequestProcessors(parameters);
    }

    @Override
    public Map<String, Processor.Factory<SearchResponseProcessor>> getResponseProcessors(Parameters parameters) {
        return plugin.getResponseProcessors(parameters);
    }
}
