package rights;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.Supplier;
import java.util.stream.StreamSupport;
import org.apache.lucene.codecs.StoredFieldsReader;
import org.apache.lucene.index.*;
import org.apache.lucene.util.Bits;
import org.apache.lucene.util.FixedBitSet;
import org.opensearch.action.ActionRequest;
import org.opensearch.action.support.ActionFilter;
import org.opensearch.action.support.ActionFilterChain;
import org.opensearch.action.support.ActionRequestMetadata;
import org.opensearch.cluster.metadata.IndexNameExpressionResolver;
import org.opensearch.cluster.node.DiscoveryNodes;
import org.opensearch.cluster.service.ClusterService;
import org.opensearch.common.settings.*;
import org.opensearch.common.lucene.index.SequentialStoredFieldsLeafReader;
import org.opensearch.common.util.concurrent.ThreadContext;
import org.opensearch.common.xcontent.XContentHelper;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.action.ActionListener;
import org.opensearch.core.action.ActionResponse;
import org.opensearch.core.common.bytes.BytesReference;
import org.opensearch.core.common.io.stream.NamedWriteableRegistry;
import org.opensearch.core.common.io.stream.StreamInput;
import org.opensearch.core.common.io.stream.StreamOutput;
import org.opensearch.core.rest.RestStatus;
import org.opensearch.core.xcontent.NamedXContentRegistry;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.env.Environment;
import org.opensearch.env.NodeEnvironment;
import org.opensearch.index.IndexModule;
import org.opensearch.plugins.ActionPlugin;
import org.opensearch.plugins.Plugin;
import org.opensearch.plugins.SearchPlugin;
import org.opensearch.repositories.RepositoriesService;
import org.opensearch.rest.*;
import org.opensearch.script.ScriptService;
import org.opensearch.search.SearchExtBuilder;
import org.opensearch.tasks.Task;
import org.opensearch.threadpool.ThreadPool;
import org.opensearch.transport.client.Client;
import org.opensearch.transport.client.node.NodeClient;
import org.opensearch.watcher.ResourceWatcherService;

/**
 * Hides documents and fields of indices named guarded* by the header x-user. Like OpenSearch's security plugin, it wraps
 * the readers and uses the thread's context. The user chief sees all. The user clerk sees neither documents whose field
 * secret is yes, nor the fields kind, pay, note and rerank_features.meta@w. Without the header, the user is the one of the
 * name and the password; requests with neither see no document. GET /_rights returns how often each user opened a reader,
 * and which fields were read. For users with a name and a password, it also returns their actions, for which rights are given.
 * Searches may have {@code ext.ubi}, as with the plugin of User Behavior Insights.
 */
public final class RightsPlugin extends Plugin implements ActionPlugin, SearchPlugin {
    private static final String HEADER = "x-user";
    private static final Map<String, Set<String>> HIDDEN =
        Map.of("chief", Set.of(), "clerk", Set.of("kind", "pay", "note", "rerank_features.meta@w"), "nobody", Set.of("kind"));

    private final Map<String, LongAdder> readers = new ConcurrentHashMap<>();
    private final Map<String, Set<String>> read = new ConcurrentHashMap<>();
    private final Map<String, Set<String>> actions = new ConcurrentHashMap<>();
    private ThreadContext context;

    @Override
    public Collection<Object> createComponents(Client client, ClusterService clusterService, ThreadPool threadPool,
            ResourceWatcherService watcher, ScriptService scripts, NamedXContentRegistry xContent, Environment environment,
            NodeEnvironment nodeEnvironment, NamedWriteableRegistry writeables, IndexNameExpressionResolver resolver,
            Supplier<RepositoriesService> repositories) {
        context = threadPool.getThreadContext();
        return List.of();
    }

    @Override
    public List<SearchExtSpec<?>> getSearchExts() {
        return List.of(new SearchExtSpec<>(Ubi.NAME, Ubi::new, parser -> new Ubi(parser.map())));
    }

    /** {@code ext.ubi}. Like the original, it writes its fields without its name. */
    private static final class Ubi extends SearchExtBuilder {
        static final String NAME = "ubi";
        private final Map<String, Object> fields;

        Ubi(Map<String, Object> fields) {
            this.fields = fields;
        }

        Ubi(StreamInput in) throws IOException {
            this(in.readMap());
        }

        @Override
        public String getWriteableName() {
            return NAME;
        }

        @Override
        public void writeTo(StreamOutput out) throws IOException {
            out.writeMap(fields);
        }

        @Override
        public XContentBuilder toXContent(XContentBuilder json, Params params) throws IOException {
            return json.mapContents(fields);
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Ubi ubi && ubi.fields.equals(fields);
        }

        @Override
        public int hashCode() {
            return fields.hashCode();
        }
    }

    @Override
    public Collection<RestHeaderDefinition> getRestHeaders() {
        return List.of(new RestHeaderDefinition(HEADER, false), new RestHeaderDefinition("Authorization", false));
    }

    @Override
    public List<ActionFilter> getActionFilters() {
        return List.of(new ActionFilter() {
            @Override
            public int order() {
                return 0;
            }

            @Override
            public <Request extends ActionRequest, Response extends ActionResponse> void apply(Task task, String action,
                    Request request, ActionRequestMetadata<Request, Response> metadata, ActionListener<Response> listener,
                    ActionFilterChain<Request, Response> chain) {
                String user = named();
                if (user != null) {
                    actions.computeIfAbsent(user, u -> ConcurrentHashMap.newKeySet()).add(action);
                }
                chain.proceed(task, action, request, listener);
            }
        });
    }

    /** The user with a name and a password, or null. */
    private String named() {
        String given = context.getHeader("Authorization");
        boolean isBasic = given != null && given.startsWith("Basic ");
        return isBasic ? new String(Base64.getDecoder().decode(given.substring(6)), StandardCharsets.UTF_8).split(":")[0] : null;
    }

    private String user() {
        return context.getHeader(HEADER) == null ? named() : context.getHeader(HEADER);
    }

    @Override
    public void onIndexModule(IndexModule module) {
        if (module.getIndex().getName().startsWith("guarded")) {
            module.setReaderWrapper(service -> reader -> new View(reader, user()));
        }
    }

    @Override
    public List<RestHandler> getRestHandlers(Settings settings, RestController controller, ClusterSettings clusterSettings,
            IndexScopedSettings indexScopedSettings, SettingsFilter settingsFilter, IndexNameExpressionResolver resolver,
            Supplier<DiscoveryNodes> nodes) {
        return List.of(new BaseRestHandler() {
            @Override
            public String getName() {
                return "rights";
            }

            @Override
            public List<Route> routes() {
                return List.of(new Route(RestRequest.Method.GET, "/_rights"));
            }

            @Override
            protected RestChannelConsumer prepareRequest(RestRequest request, NodeClient client) {
                Map<String, Object> counts = new TreeMap<>();
                readers.forEach((user, count) -> counts.put(user, count.sum()));
                Map<String, Object> fields = new TreeMap<>();
                read.forEach((user, names) -> fields.put(user, new TreeSet<>(names)));
                Map<String, Object> taken = new TreeMap<>();
                actions.forEach((user, names) -> taken.put(user, new TreeSet<>(names)));
                Map<String, Object> told = Map.of("readers", counts, "fields", fields, "actions", taken);
                return channel -> channel.sendResponse(new BytesRestResponse(RestStatus.OK, channel.newBuilder().map(told)));
            }
        });
    }

    private final class View extends FilterDirectoryReader {
        private final String user;

        View(DirectoryReader in, String user) throws IOException {
            super(in, new SubReaderWrapper() {
                @Override
                public LeafReader wrap(LeafReader reader) {
                    try {
                        return new Leaf(reader, user == null ? "nobody" : user);
                    } catch (IOException e) {
                        throw new java.io.UncheckedIOException(e);
                    }
                }
            });
            this.user = user;
            readers.computeIfAbsent(user == null ? "nobody" : user, u -> new LongAdder()).increment();
        }

        @Override
        protected DirectoryReader doWrapDirectoryReader(DirectoryReader in) throws IOException {
            return new View(in, user);
        }

        @Override
        public CacheHelper getReaderCacheHelper() {
            return in.getReaderCacheHelper(); // required by the node
        }
    }

    private final class Leaf extends SequentialStoredFieldsLeafReader {
        private final String user;
        private final Set<String> hidden;
        private final FixedBitSet live;
        private final FieldInfos infos;

        Leaf(LeafReader in, String user) throws IOException {
            super(in);
            this.user = user;
            hidden = HIDDEN.getOrDefault(user, Set.of());
            live = new FixedBitSet(in.maxDoc());
            SortedSetDocValues secret = in.getSortedSetDocValues("secret");
            for (int i = 0; i < in.maxDoc(); i++) {
                boolean isSecret = secret != null && secret.advanceExact(i) && secret.lookupOrd(secret.nextOrd()).utf8ToString().equals("yes");
                boolean there = in.getLiveDocs() == null || in.getLiveDocs().get(i);
                if (there && (user.equals("chief") || user.equals("clerk") && isSecret == false)) {
                    live.set(i);
                }
            }
            infos = new FieldInfos(StreamSupport.stream(in.getFieldInfos().spliterator(), false)
                .filter(info -> hidden.contains(info.name) == false).toArray(FieldInfo[]::new));
        }

        private boolean hides(String field) {
            read.computeIfAbsent(user, u -> ConcurrentHashMap.newKeySet()).add(field);
            return hidden.contains(field);
        }

        @Override
        public Bits getLiveDocs() {
            return live;
        }

        @Override
        public int numDocs() {
            return live.cardinality();
        }

        @Override
        public FieldInfos getFieldInfos() {
            return infos;
        }

        @Override
        public Terms terms(String field) throws IOException {
            return hides(field) ? null : super.terms(field);
        }

        @Override
        public NumericDocValues getNumericDocValues(String field) throws IOException {
            return hides(field) ? null : super.getNumericDocValues(field);
        }

        @Override
        public BinaryDocValues getBinaryDocValues(String field) throws IOException {
            return hides(field) ? null : super.getBinaryDocValues(field);
        }

        @Override
        public SortedDocValues getSortedDocValues(String field) throws IOException {
            return hides(field) ? null : super.getSortedDocValues(field);
        }

        @Override
        public SortedNumericDocValues getSortedNumericDocValues(String field) throws IOException {
            return hides(field) ? null : super.getSortedNumericDocValues(field);
        }

        @Override
        public SortedSetDocValues getSortedSetDocValues(String field) throws IOException {
            return hides(field) ? null : super.getSortedSetDocValues(field);
        }

        @Override
        public StoredFields storedFields() throws IOException {
            StoredFields fields = super.storedFields();
            return new StoredFields() {
                @Override
                public void document(int id, StoredFieldVisitor visitor) throws IOException {
                    fields.document(id, filtered(visitor));
                }
            };
        }

        @Override
        protected StoredFieldsReader doGetSequentialStoredFieldsReader(StoredFieldsReader reader) {
            return new StoredFieldsReader() {
                @Override
                public void document(int id, StoredFieldVisitor visitor) throws IOException {
                    reader.document(id, filtered(visitor));
                }

                @Override
                public StoredFieldsReader clone() {
                    return doGetSequentialStoredFieldsReader(reader.clone());
                }

                @Override
                public void checkIntegrity() throws IOException {
                    reader.checkIntegrity();
                }

                @Override
                public void close() throws IOException {
                    reader.close();
                }
            };
        }

        private StoredFieldVisitor filtered(StoredFieldVisitor visitor) {
            return new StoredFieldVisitor() {
                @Override
                public Status needsField(FieldInfo info) throws IOException {
                    return hides(info.name) ? Status.NO : visitor.needsField(info);
                }

                @Override
                public void binaryField(FieldInfo info, byte[] value) throws IOException {
                    visitor.binaryField(info, info.name.equals("_source") ? without(value) : value);
                }

                @Override
                public void stringField(FieldInfo info, String value) throws IOException {
                    visitor.stringField(info, value);
                }

                @Override
                public void intField(FieldInfo info, int value) throws IOException {
                    visitor.intField(info, value);
                }

                @Override
                public void longField(FieldInfo info, long value) throws IOException {
                    visitor.longField(info, value);
                }

                @Override
                public void floatField(FieldInfo info, float value) throws IOException {
                    visitor.floatField(info, value);
                }

                @Override
                public void doubleField(FieldInfo info, double value) throws IOException {
                    visitor.doubleField(info, value);
                }
            };
        }

        private byte[] without(byte[] source) throws IOException {
            Map<String, Object> kept = XContentHelper.convertToMap(JsonXContent.jsonXContent, source, 0, source.length, true);
            kept.keySet().removeAll(hidden);
            if (kept.get("rerank_features") instanceof Map<?, ?> features) {
                features.keySet().removeIf(name -> hidden.contains("rerank_features." + name));
            }
            return BytesReference.toBytes(BytesReference.bytes(JsonXContent.contentBuilder().map(kept)));
        }

        @Override
        public CacheHelper getCoreCacheHelper() {
            return in.getCoreCacheHelper();
        }

        @Override
        public CacheHelper getReaderCacheHelper() {
            return null;
        }
    }
}
