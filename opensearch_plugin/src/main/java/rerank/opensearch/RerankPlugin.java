package rerank.opensearch;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.*;
import java.util.concurrent.Executor;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.opensearch.action.search.SearchRequest;
import org.opensearch.action.search.SearchResponse;
import org.opensearch.action.support.ActionFilter;
import org.opensearch.cluster.metadata.IndexNameExpressionResolver;
import org.opensearch.cluster.node.DiscoveryNodes;
import org.opensearch.cluster.service.ClusterService;
import org.opensearch.common.settings.*;
import org.opensearch.common.unit.MemorySizeValue;
import org.opensearch.common.unit.TimeValue;
import org.opensearch.common.util.concurrent.ThreadContext;
import org.opensearch.core.action.ActionListener;
import org.opensearch.core.common.io.stream.NamedWriteableRegistry;
import org.opensearch.core.common.breaker.NoopCircuitBreaker;
import org.opensearch.core.common.settings.SecureString;
import org.opensearch.core.xcontent.NamedXContentRegistry;
import org.opensearch.env.Environment;
import org.opensearch.indices.breaker.BreakerSettings;
import org.opensearch.env.NodeEnvironment;
import org.opensearch.ingest.ConfigurationUtils;
import org.opensearch.plugins.*;
import org.opensearch.repositories.RepositoriesService;
import org.opensearch.rest.RestController;
import org.opensearch.rest.RestHandler;
import org.opensearch.script.ScriptService;
import org.opensearch.search.pipeline.*;
import org.opensearch.threadpool.ExecutorBuilder;
import org.opensearch.threadpool.ScalingExecutorBuilder;
import org.opensearch.threadpool.ThreadPool;
import org.opensearch.transport.client.Client;
import org.opensearch.watcher.ResourceWatcherService;

/** The processor {@code rerank_stack} of search pipelines, {@code ext.rerank_stack} of searches, and counters. */
public final class RerankPlugin extends Plugin implements SearchPipelinePlugin, SearchPlugin, ActionPlugin,
        ReloadablePlugin, CircuitBreakerPlugin {
    /** Name of its threads, which process the answers of the service. */
    static final String POOL = "rerank";
    private static final int MOST_THREADS = 10_000;
    /** The URLs that pipelines may call. Otherwise anyone who can edit pipelines could send the token to any URL. */
    static final Setting<List<String>> ALLOWED =
        Setting.listSetting(Protocol.ALLOWED_URLS, builtIn(), Function.identity(), Setting.Property.NodeScope);
    private static final Setting<SecureString> TOKEN = SecureSetting.secureString("plugins.rerank_stack.token", null);
    private static final Logger logger = LogManager.getLogger(RerankPlugin.class);
    private final List<String> allowed;
    private final boolean readsQueryContext;

    final Stats stats = new Stats();
    ClusterService clusterService;
    IndexNameExpressionResolver resolver;
    ThreadContext threadContext;
    Client node;
    NamedXContentRegistry xContent; // reads queries
    Executor pool;
    volatile String token; // for the service, or null
    /** Of the bodies of calls; it is part of the node's total limit. */
    org.opensearch.core.common.breaker.CircuitBreaker memory = new NoopCircuitBreaker(Protocol.PROCESSOR);

    public RerankPlugin(Settings settings) {
        allowed = ALLOWED.get(settings);
        readsQueryContext = readsQueryContext(settings);
        reload(settings);
    }

    /** The URLs of the build: operators of a managed cluster cannot change settings of its nodes. */
    private static List<String> builtIn() {
        try (InputStream stream = RerankPlugin.class.getResourceAsStream("build.properties")) {
            Properties properties = new Properties();
            properties.load(stream);
            return Arrays.stream(properties.getProperty("allowed.urls").split(",")).map(String::strip).filter(url -> url.isEmpty() == false).toList();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Whether no other plugin reads {@code ext.rerank}. */
    private static boolean readsQueryContext(Settings settings) {
        try {
            return Environment.PATH_HOME_SETTING.exists(settings) && QueryContext.isReadByNeuralSearch(settings) == false;
        } catch (IOException e) {
            logger.warn("the plugins of this node cannot be listed, so ext.rerank is not read", e);
            return false;
        }
    }

    /** Called on POST /_nodes/reload_secure_settings. */
    @Override
    public void reload(Settings settings) {
        try (SecureString secret = TOKEN.get(settings)) {
            token = secret.isEmpty() ? null : secret.toString().strip();
        }
    }

    @Override
    public List<Setting<?>> getSettings() {
        return List.of(TOKEN, ALLOWED);
    }

    @Override
    public BreakerSettings getCircuitBreaker(Settings settings) {
        long limit = MemorySizeValue.parseBytesSizeValueOrHeapRatio("10%", Protocol.PROCESSOR).getBytes();
        return BreakerSettings.updateFromSettings(new BreakerSettings(Protocol.PROCESSOR, limit, 1.0), settings);
    }

    @Override
    public void setCircuitBreaker(org.opensearch.core.common.breaker.CircuitBreaker breaker) {
        memory = breaker;
    }

    @Override
    public List<ExecutorBuilder<?>> getExecutorBuilders(Settings settings) {
        return List.of(new ScalingExecutorBuilder(POOL, 1, MOST_THREADS, TimeValue.timeValueSeconds(30)));
    }

    @Override
    public Collection<Object> createComponents(Client client, ClusterService clusterService, ThreadPool threadPool,
            ResourceWatcherService watcher, ScriptService scripts, NamedXContentRegistry xContent, Environment environment,
            NodeEnvironment nodeEnvironment, NamedWriteableRegistry writeables, IndexNameExpressionResolver resolver,
            Supplier<RepositoriesService> repositories) {
        this.clusterService = clusterService;
        this.resolver = resolver;
        this.node = client;
        this.xContent = xContent;
        this.threadContext = threadPool.getThreadContext();
        this.pool = threadPool.executor(POOL);
        return List.of();
    }

    @Override
    public Map<String, Processor.Factory<SearchRequestProcessor>> getRequestProcessors(Parameters parameters) {
        return Map.of(Protocol.PROCESSOR, (factories, tag, description, ignoreFailure, config, context) -> {
            if (context.getPipelineSource() == Processor.PipelineSource.SEARCH_REQUEST) {
                // Otherwise any user could send the token to any URL.
                throw new IllegalArgumentException("the processor [rerank_stack] works in stored pipelines only");
            }
            Config read = Config.read(tag, config);
            boolean allows = read.urls().stream().allMatch(url -> Config.allows(allowed, url));
            if (context.getPipelineSource() == Processor.PipelineSource.VALIDATE_PIPELINE && allows == false) {
                throw ConfigurationUtils.newConfigurationException(Protocol.PROCESSOR, tag, "url",
                    "must be among the URLs that the nodes' setting [" + ALLOWED.getKey() + "] lists");
            }
            ScoringClient service = new ScoringClient(read, allows, this, parameters.scheduler);
            return new RerankProcessor(this, tag, description, ignoreFailure, read, service);
        });
    }

    @Override
    public Map<String, Processor.Factory<SearchResponseProcessor>> getResponseProcessors(Parameters parameters) {
        return Map.of(Protocol.PROCESSOR, (factories, tag, description, ignoreFailure, config, context) ->
            new RerankProcessor(this, tag, description, ignoreFailure, null, null));
    }

    /** A search without a pipeline, which ends when the search of the user is cancelled. */
    void search(SearchPlan plan, SearchRequest request, ActionListener<SearchResponse> listener) {
        request.pipeline("_none");
        node.search(plan.attempt == null ? request : plan.attempt.child(request, this), listener);
    }

    @Override
    public List<ActionFilter> getActionFilters() {
        return List.of(new AttemptFilter(this).asFilter());
    }

    @Override
    public List<RestHandler> getRestHandlers(Settings settings, RestController controller, ClusterSettings clusterSettings,
            IndexScopedSettings indexScopedSettings, SettingsFilter settingsFilter, IndexNameExpressionResolver resolver,
            Supplier<DiscoveryNodes> nodes) {
        return List.of(new StatsHandler(stats));
    }

    @Override
    public List<SearchExtSpec<?>> getSearchExts() {
        SearchExtSpec<?> own = new SearchExtSpec<>(Protocol.PROCESSOR, in -> new RerankExt(in.readMap()), RerankExt::parse);
        SearchExtSpec<?> context = new SearchExtSpec<>(QueryContext.NAME, in -> new QueryContext(in.readMap()), QueryContext::parse);
        return readsQueryContext ? List.of(own, context) : List.of(own);
    }
}
