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
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.core.xcontent.XContentParser;
import org.opensearch.env.Environment;
import org.opensearch.search.SearchExtBuilder;
import org.opensearch.search.builder.SearchSourceBuilder;

/**
 * {@code ext.rerank.query_context.query_text}: the words of a search, as the processor {@code rerank} of neural-search reads
 * them. Only one plugin of a node can read {@code ext.rerank}; this class reads it on nodes without neural-search.
 */
final class QueryContext extends MapExt {
    static final String NAME = "rerank";
    private static final String NEURAL_SEARCH = "opensearch-neural-search";
    private static final String DESCRIPTOR = "plugin-descriptor.properties";

    QueryContext(Map<String, Object> values) {
        super(values);
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
            if (ext.getWriteableName().equals(NAME) && asMap(ext).get("query_context") instanceof Map<?, ?> context
                    && context.get("query_text") instanceof String text) {
                return text;
            }
        }
        return null;
    }

    @Override
    public String getWriteableName() {
        return NAME;
    }

    /** As neural-search writes it, without the name. */
    @Override
    public XContentBuilder toXContent(XContentBuilder builder, Params params) throws IOException {
        for (Map.Entry<String, Object> value : values.entrySet()) {
            builder.field(value.getKey(), value.getValue());
        }
        return builder;
    }
}
