package rerank.opensearch;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import org.opensearch.common.xcontent.XContentHelper;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.common.bytes.BytesReference;
import org.opensearch.core.common.io.stream.StreamOutput;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.core.xcontent.XContentParser;
import org.opensearch.search.SearchExtBuilder;
import org.opensearch.search.builder.SearchSourceBuilder;

/** {@code ext.rerank}: in a request what the user wants, in the response what became of it. */
final class RerankExt extends SearchExtBuilder {
    /** Characters of a query, a stack and a category; categories of a query. */
    static final int LONGEST_QUERY = 100_000, LONGEST_STACK = 1_000, LONGEST_CATEGORY = 300, MOST_CATEGORIES = 100;
    final Map<String, Object> values;

    RerankExt(Map<String, Object> values) {
        this.values = values;
    }

    static RerankExt parse(XContentParser parser) throws IOException {
        return new RerankExt(checked(parser.map()));
    }

    private static Map<String, Object> checked(Map<String, Object> values) {
        values.forEach((name, value) -> {
            if (switch (name) {
                case "query" -> text(value, LONGEST_QUERY);
                case "stack" -> text(value, LONGEST_STACK);
                case "categories" -> value instanceof List<?> list && list.size() <= MOST_CATEGORIES
                    && list.stream().allMatch(one -> text(one, LONGEST_CATEGORY));
                case "user", "lang" -> text(value, LONGEST_CATEGORY);
                case "explain", "off" -> value instanceof Boolean;
                case "query_context" -> true; // of the processors of neural-search
                default -> false;
            }) {
                return;
            }
            throw new IllegalArgumentException("ext.rerank: [" + name + "] is unknown, of a wrong type or too long; query and"
                + " stack are strings of at most " + LONGEST_QUERY + " and " + LONGEST_STACK + " characters, categories at most "
                + MOST_CATEGORIES + " strings of " + LONGEST_CATEGORY + ", user and lang one of so many, explain and off true or false");
        });
        return values;
    }

    private static boolean text(Object value, int longest) {
        return value instanceof String text && text.length() <= longest;
    }

    /** Take it out of a request: a data node without the plugin could not read it. That of neural-search stays. */
    static RerankExt take(SearchSourceBuilder source) throws IOException {
        for (SearchExtBuilder ext : source == null ? List.<SearchExtBuilder>of() : source.ext()) {
            if (ext instanceof RerankExt ours) {
                source.ext(source.ext().stream().filter(other -> other != ours).toList());
                return ours;
            }
            if (ext.getWriteableName().equals(RerankPlugin.NAME)) {
                XContentBuilder json = JsonXContent.contentBuilder().startObject();
                ext.toXContent(json, EMPTY_PARAMS).endObject();
                return new RerankExt(checked(XContentHelper.convertToMap(BytesReference.bytes(json), false, json.contentType()).v2()));
            }
        }
        return new RerankExt(Map.of());
    }

    String text(String name) {
        return (String) values.get(name);
    }

    int length(String name) {
        return text(name) == null ? 0 : text(name).length();
    }

    boolean is(String name) {
        return Boolean.TRUE.equals(values.get(name));
    }

    @Override
    public String getWriteableName() {
        return RerankPlugin.NAME;
    }

    @Override
    public void writeTo(StreamOutput out) throws IOException {
        out.writeMap(values);
    }

    @Override
    public XContentBuilder toXContent(XContentBuilder builder, Params params) throws IOException {
        return builder.field(RerankPlugin.NAME, values);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof RerankExt ext && ext.values.equals(values);
    }

    @Override
    public int hashCode() {
        return values.hashCode();
    }
}
