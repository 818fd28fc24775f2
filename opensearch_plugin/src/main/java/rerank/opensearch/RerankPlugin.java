package rerank.opensearch;

import java.io.*;
import java.net.URI;
import java.net.http.HttpClient;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.Executor;
import java.util.function.Function;
import java.util.function.Supplier;
import org.opensearch.cluster.metadata.IndexNameExpressionResolver;
import org.opensearch.cluster.service.ClusterService;
import org.opensearch.common.settings.*;
import org.opensearch.common.unit.TimeValue;
import org.opensearch.common.util.concurrent.ThreadContext;
import org.opensearch.core.common.io.stream.NamedWriteableRegistry;
import org.opensearch.core.common.settings.SecureString;
import org.opensearch.core.xcontent.NamedXContentRegistry;
import org.opensearch.env.Environment;
import org.opensearch.env.NodeEnvironment;
import org.opensearch.ingest.ConfigurationUtils;
import org.opensearch.plugins.*;
import org.opensearch.repositories.RepositoriesService;
import org.opensearch.script.ScriptService;
import org.opensearch.search.pipeline.*;
import org.opensearch.threadpool.ExecutorBuilder;
import org.opensearch.threadpool.ScalingExecutorBuilder;
import org.opensearch.threadpool.ThreadPool;
import org.opensearch.transport.client.Client;
import org.opensearch.watcher.ResourceWatcherService;

/**
 * The processor {@code rerank_stack} of search pipelines and {@code ext.rerank} of searches. This class is the
 * plugin of managed clusters; other clusters use {@link WholePlugin}.
 */
public class RerankPlugin extends Plugin implements SearchPipelinePlugin, SearchPlugin {
    /** Name of its threads, which process the answers of the service. */
    static final String POOL = "rerank";
    private static final int MOST_THREADS = 10_000;
    /** The URLs that pipelines may call. Otherwise anyone who can edit pipelines could send the token to any URL. */
    static final Setting<List<String>> ALLOWED =
        Setting.listSetting(Protocol.ALLOWED_URLS, built(), Function.identity(), Setting.Property.NodeScope);
    private static final Setting<SecureString> TOKEN = SecureSetting.secureString("rerank.token", null);
    /** Tokens of pipelines with a token name. */
    private static final Setting.AffixSetting<SecureString> TOKENS =
        Setting.prefixKeySetting("rerank.tokens.", key -> SecureSetting.secureString(key, null));
    private final boolean neuralSearch;
    private final List<String> allowed;

    final Stats stats = new Stats();
    final Mappings mappings = new Mappings();
    ClusterService clusterService;
    IndexNameExpressionResolver resolver;
    NamedWriteableRegistry writeables;
    ThreadContext threadContext;
    Client node;
    Executor pool;
    HttpClient http;
    private volatile String token;
    private volatile Map<String, String> tokens = Map.of();

    public RerankPlugin(Settings settings, Path config) {
        neuralSearch = isInstalled("opensearch-neural-search", new Environment(settings, config).pluginsDir());
        allowed = ALLOWED.get(settings);
        readTokens(settings);
    }

    /** The URLs of the build (-Drerank.allowed_urls), for clusters whose nodes have no settings. */
    private static List<String> built() {
        try (InputStream found = RerankPlugin.class.getResourceAsStream("allowed_urls")) {
            String urls = new String(found.readAllBytes(), StandardCharsets.UTF_8);
            return urls.lines().flatMap(line -> Arrays.stream(line.split(","))).map(String::strip).filter(url -> url.isEmpty() == false).toList();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static boolean isInstalled(String plugin, Path folder) {
        try (DirectoryStream<Path> plugins = Files.newDirectoryStream(folder)) {
            for (Path path : plugins) {
                if (PluginInfo.readFromProperties(path).getName().equals(plugin)) {
                    return true;
                }
            }
            return false;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    final void readTokens(Settings settings) {
        try (SecureString secret = TOKEN.get(settings)) {
            token = secret.isEmpty() ? null : secret.toString().strip();
        }
        Map<String, String> named = new HashMap<>();
        TOKENS.getAsMap(settings).forEach((name, secret) -> {
            named.put(name, secret.toString().strip());
            secret.close();
        });
        tokens = named;
    }

    /** The token for the service. name: of rerank.tokens.*, or null for rerank.token. */
    String token(String name) {
        return name == null ? token : tokens.get(name);
    }

    @Override
    public List<Setting<?>> getSettings() {
        return List.of(TOKEN, TOKENS, ALLOWED);
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
        this.writeables = writeables;
        this.node = client;
        this.threadContext = threadPool.getThreadContext();
        this.pool = threadPool.executor(POOL);
        this.http = client(pool);
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
            List<URI> urls = read.urls().stream().filter(url -> Config.allows(allowed, url)).toList();
            if (context.getPipelineSource() == Processor.PipelineSource.VALIDATE_PIPELINE && urls.equals(read.urls()) == false) {
                throw ConfigurationUtils.newConfigurationException(Protocol.PROCESSOR, tag, "url",
                    "must be among the URLs that the nodes' setting [" + ALLOWED.getKey() + "] lists");
            }
            ScoringClient service = new ScoringClient(read, urls, this, parameters.scheduler);
            return new RerankProcessor(this, tag, description, ignoreFailure, read, service);
        });
    }

    @Override
    public Map<String, Processor.Factory<SearchResponseProcessor>> getResponseProcessors(Parameters parameters) {
        return Map.of(Protocol.PROCESSOR, (factories, tag, description, ignoreFailure, config, context) ->
            new RerankProcessor(this, tag, description, ignoreFailure, null, null));
    }

    /** Keeps connections for 30 seconds after their last call; services and proxies keep them longer. */
    static HttpClient client(Executor pool) {
        return HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).proxy(HttpClient.Builder.NO_PROXY).executor(pool).build();
    }

    @Override
    public void close() {
        if (http != null) {
            http.shutdownNow();
        }
    }

    @Override
    public List<SearchExtSpec<?>> getSearchExts() {
        return neuralSearch ? List.of() : List.of(new SearchExtSpec<>(Protocol.EXT, in -> new RerankExt(in.readMap()), RerankExt::parse));
    }
}
