package rerank.opensearch;

import java.io.IOException;
import java.util.Map;
import org.opensearch.common.xcontent.XContentHelper;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.common.bytes.BytesReference;
import org.opensearch.core.common.io.stream.StreamOutput;
import org.opensearch.core.xcontent.MediaTypeRegistry;
import org.opensearch.core.xcontent.ToXContent;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.search.SearchExtBuilder;

/** Options in {@code ext} of a search, as a map. */
abstract class MapExt extends SearchExtBuilder {
    final Map<String, Object> values;

    MapExt(Map<String, Object> values) {
        this.values = values;
    }

    /**
     * The options of an ext, whose class may be of another plugin, and not visible here; empty if they cannot be read. Some
     * plugins write the name of the ext around its options.
     */
    static Map<?, ?> asMap(SearchExtBuilder ext) {
        try (XContentBuilder json = JsonXContent.contentBuilder()) {
            ext.toXContent(json.startObject(), ToXContent.EMPTY_PARAMS);
            Map<String, Object> map = XContentHelper.convertToMap(BytesReference.bytes(json.endObject()), false, MediaTypeRegistry.JSON).v2();
            return map.get(ext.getWriteableName()) instanceof Map<?, ?> options ? options : map;
        } catch (IOException | RuntimeException e) {
            return Map.of();
        }
    }

    @Override
    public void writeTo(StreamOutput out) throws IOException {
        out.writeMap(values);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof MapExt ext && ext.getClass() == getClass() && ext.values.equals(values);
    }

    @Override
    public int hashCode() {
        return values.hashCode();
    }
}
