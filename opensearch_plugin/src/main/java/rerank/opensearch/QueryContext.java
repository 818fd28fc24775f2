package rerank.opensearch;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Properties;
import org.opensearch.common.io.PathUtils;
import org.opensearch.common.settings.Settings;
import org.opensearch.common.xcontent.XContentHelper;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.common.bytes.BytesReference;
import org.opensearch.core.common.io.stream.StreamOutput;
import org.opensearch.core.xcontent.*;
import org.opensearch.env.Environment;
import org.opensearch.search.SearchExtBuilder;
import org.opensearch.search.builder.SearchSourceBuilder;

/**
 * {@code ext.rerank.query_context.query_text}: the words of a search, as the processor {@code rerank} of neural-search reads
 * them. Only one plugin of a node can read {@code ext.rerank}; this class reads it on nodes without neural-search.
 */
final class QueryContext extends SearchExtBuilder {
    static final String NAME = "rerank";
    private static final String NEURAL_SEARCH = "opensearch-neural-search";
    private static final String DESCRIPTOR = "plugin-descriptor.properties";
    private final Map<String, Object> values;

    QueryContext(Map<String, Object> values) {
        this.values = values;
    }

    static QueryContext parse(XContentParser parser) throws IOException {
        return new QueryContext(parser.map());
    }

    /** Whether the node has neural-search. The name of a plugin's folder can differ from the name of the plugin. */
    static boolean isReadByNeuralSearch(Settings settings) throws IOException {
        Path plugins = PathUtils.get(Environment.PATH_HOME_SETTING.get(settings)).resolve("plugins");
        if (Files.isDirectory(plugins) == false) {
            return false;
        }
        try (DirectoryStream<Path> folders = Files.newDirectoryStream(plugins)) {
            for (Path folder : folders) {
                Path descriptor = folder.resolve(DESCRIPTOR);
                if (Files.exists(descriptor) && NEURAL_SEARCH.equals(name(descriptor))) {
                    return true;
                }
            }
        }
        return false;
    }

    private static String name(Path descriptor) throws IOException {
        Properties properties = new Properties();
        try (InputStream stream = Files.newInputStream(descriptor)) {
            properties.load(stream);
        }
        return properties.getProperty("name");
    }

    /** The words, or null. */
    static String text(SearchSourceBuilder source) {
        for (SearchExtBuilder ext : source.ext()) {
            if (ext.getWriteableName().equals(NAME) && map(ext).get("query_context") instanceof Map<?, ?> context
                    && context.get("query_text") instanceof String text) {
                return text;
            }
        }
        return null;
    }

    /** The JSON of an option: the classes of neural-search are not visible here. */
    private static Map<String, Object> map(SearchExtBuilder ext) {
        try (XContentBuilder json = JsonXContent.contentBuilder()) {
            ext.toXContent(json.startObject(), ToXContent.EMPTY_PARAMS);
            return XContentHelper.convertToMap(BytesReference.bytes(json.endObject()), false, MediaTypeRegistry.JSON).v2();
        } catch (IOException e) {
            throw new IllegalArgumentException("ext.rerank cannot be read", e);
        }
    }

    @Override
    public String getWriteableName() {
        return NAME;
    }

    @Override
    public void writeTo(StreamOutput out) throws IOException {
        out.writeMap(values);
    }

    /** As neural-search writes it, without the name. */
    @Override
    public XContentBuilder toXContent(XContentBuilder builder, Params params) throws IOException {
        for (Map.Entry<String, Object> value : values.entrySet()) {
            builder.field(value.getKey(), value.getValue());
        }
        return builder;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof QueryContext context && context.values.equals(values);
    }

    @Override
    public int hashCode() {
        return values.hashCode();
    }
}
