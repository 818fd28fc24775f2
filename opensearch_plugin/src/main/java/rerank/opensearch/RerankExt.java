package rerank.opensearch;

import java.io.IOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.core.xcontent.XContentParser;
import org.opensearch.search.SearchExtBuilder;
import org.opensearch.search.builder.SearchSourceBuilder;

/** {@code ext.rerank_stack}: options in a request, the outcome in a response. */
final class RerankExt extends MapExt {
    private static final String UBI = "ubi";
    private static final List<String> IDS = List.of("client_id", "query_id");
    static final int LONGEST_QUERY = 100_000; // characters

    RerankExt(Map<String, Object> values) {
        super(values);
    }

    static RerankExt parse(XContentParser parser) throws IOException {
        Map<String, Object> values = parser.map();
        values.forEach((name, value) -> {
            if (switch (name) {
                case "query" -> text(value, LONGEST_QUERY);
                case "stack" -> text(value, Protocol.LONGEST_STACK);
                case "categories" -> value instanceof List<?> list && list.size() <= Protocol.MOST_CATEGORIES
                    && list.stream().allMatch(category -> text(category, Protocol.LONGEST_CATEGORY));
                case "lang", "client_id", "query_id" -> text(value, Protocol.LONGEST_CATEGORY);
                case "min_score" -> value instanceof Number number && Double.isFinite(number.doubleValue());
                case "explain", "off", "retrieve" -> value instanceof Boolean;
                default -> false;
            }) {
                return;
            }
            throw new IllegalArgumentException("ext.rerank_stack: [" + name + "] is unknown, of a wrong type or too long; query and"
                + " stack are strings of at most " + LONGEST_QUERY + " and " + Protocol.LONGEST_STACK + " characters, categories at most "
                + Protocol.MOST_CATEGORIES + " strings of " + Protocol.LONGEST_CATEGORY + ", lang, client_id and query_id one"
                + " of so many, min_score a number, explain, off and retrieve true or false");
        });
        return new RerankExt(values);
    }

    private static boolean text(Object value, int longest) {
        return value instanceof String text && text.length() <= longest;
    }

    /**
     * Remove the options from a request: a data node without the plugin could not read them. By default, client_id and query_id are
     * those of {@code ext.ubi}.
     */
    static RerankExt take(SearchSourceBuilder source) {
        if (source == null || source.ext().isEmpty()) {
            return new RerankExt(Map.of());
        }
        Map<String, Object> values = new HashMap<>();
        String text = QueryContext.text(source);
        if (text != null) {
            values.put("query", text);
        }
        source.ext().stream().filter(RerankExt::isUbi).map(MapExt::asMap).forEach(ubi -> IDS.stream()
            .filter(name -> text(ubi.get(name), Protocol.LONGEST_CATEGORY)).forEach(name -> values.put(name, ubi.get(name))));
        source.ext().forEach(ext -> values.putAll(ext instanceof RerankExt ours ? ours.values : Map.of()));
        source.ext(source.ext().stream().filter(ext -> (ext instanceof RerankExt || ext instanceof QueryContext) == false).toList());
        return new RerankExt(values);
    }

    /** Whether it is the ext of User Behavior Insights, whose plugin may have another version, or be missing. */
    static boolean isUbi(SearchExtBuilder ext) {
        return ext.getWriteableName().equals(UBI);
    }

    String text(String name) {
        return (String) values.get(name);
    }

    boolean is(String name) {
        return Boolean.TRUE.equals(values.get(name));
    }

    @Override
    public String getWriteableName() {
        return Protocol.PROCESSOR;
    }

    @Override
    public XContentBuilder toXContent(XContentBuilder builder, Params params) throws IOException {
        return builder.field(Protocol.PROCESSOR, values);
    }
}
