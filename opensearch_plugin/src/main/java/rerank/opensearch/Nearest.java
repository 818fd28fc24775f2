package rerank.opensearch;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.opensearch.common.xcontent.XContentHelper;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.index.query.BoolQueryBuilder;
import org.opensearch.index.query.QueryBuilder;
import org.opensearch.index.query.QueryBuilders;
import rerank.opensearch.ScoringClient.Failure;

/**
 * The checked answer of {@code /v1/retrieve}: where the documents nearest to the words of a search are. uuids: of the indices
 * with these documents. size: the largest number of them. reason: why there are none, or null.
 */
record Nearest(List<Retriever> retrievers, Set<String> uuids, int size, String reason) {
    private static final int MOST_RETRIEVERS = 16, MOST_IDS = 10_000, MOST_NUMBERS = 16_000, LONGEST = 512;

    /**
     * ids: of documents, best first, of which {@code depth} are needed; or a k-NN field, its nested field or "", a vector and the
     * number of neighbors.
     */
    private record Retriever(List<String> ids, int depth, String field, String path, List<?> vector, int k) {
        static Retriever of(List<String> ids, int depth) {
            return new Retriever(ids, depth, null, null, null, 0);
        }
    }

    static Nearest read(byte[] bytes) {
        Map<String, Object> answer;
        try {
            answer = XContentHelper.convertToMap(JsonXContent.jsonXContent, bytes, 0, bytes.length, true);
        } catch (RuntimeException e) {
            throw new Failure("bad_answer", "did not answer in JSON");
        }
        if (answer.get("passed") instanceof String) {
            return new Nearest(List.of(), Set.of(), 0, "passed");
        }
        List<?> found = list(answer.get("find"), MOST_RETRIEVERS), uuids = list(answer.get("uuids"), MOST_IDS);
        List<Retriever> retrievers = found.stream().map(Nearest::retriever).toList();
        boolean isEmpty = retrievers.stream().allMatch(retriever -> retriever.ids != null && retriever.ids.isEmpty());
        int size = number(answer.get("size"));
        return new Nearest(retrievers, uuids.stream().map(String.class::cast).collect(Collectors.toSet()), size,
            isEmpty || size == 0 ? "passed" : null);
    }

    private static Retriever retriever(Object value) {
        if (value instanceof Map<?, ?> map && map.get("ids") != null) {
            List<?> ids = list(map.get("ids"), MOST_IDS);
            if (ids.stream().allMatch(id -> id instanceof String text && text.length() <= LONGEST)) {
                int depth = map.get("depth") == null ? ids.size() : Math.min(number(map.get("depth")), ids.size());
                return Retriever.of(ids.stream().map(String.class::cast).toList(), depth);
            }
        } else if (value instanceof Map<?, ?> map && map.get("field") instanceof String field && map.get("path") instanceof String path) {
            // Another field could show values that the user finds by searching.
            boolean isOurs = field.startsWith(Protocol.FEATURES) && field.length() <= LONGEST
                && (path.isEmpty() || path.startsWith(Protocol.FEATURES) && field.startsWith(path + "."));
            List<?> vector = list(map.get("vector"), MOST_NUMBERS);
            int k = number(map.get("k"));
            if (isOurs && k > 0 && vector.stream().allMatch(x -> x instanceof Number n && Float.isFinite(n.floatValue()))) {
                return new Retriever(null, 0, field, path, vector, k);
            }
        }
        throw new Failure("bad_answer", "named documents or fields that are not allowed");
    }

    private static List<?> list(Object value, int most) {
        if (value instanceof List<?> list && list.size() <= most) {
            return list;
        }
        throw new Failure("bad_answer", "did not answer a list of at most " + most + " entries");
    }

    private static int number(Object value) {
        if (value instanceof Integer number && number >= 0 && number <= MOST_IDS) {
            return number;
        }
        throw new Failure("bad_answer", "did not answer a number from 0 to " + MOST_IDS);
    }

    /** Whether each shard has its own nearest documents, so that more are found than are kept. */
    boolean isByShard() {
        return retrievers.stream().anyMatch(retriever -> retriever.ids == null);
    }

    /**
     * Whether documents are only needed if others do not meet the conditions of the query. Not with a k-NN field: its documents
     * could not be told from the named ones that are found.
     */
    boolean hasReserve() {
        return retrievers.stream().allMatch(retriever -> retriever.ids != null)
            && retrievers.stream().anyMatch(retriever -> retriever.depth < retriever.ids.size());
    }

    /** The ids that are needed if all their documents meet the conditions: those of each retriever to its depth, each once. */
    List<String> needed() {
        return retrievers.stream().flatMap(retriever -> retriever.ids.subList(0, retriever.depth).stream()).distinct().toList();
    }

    /** The ids after the needed ones, each once. They are best first if one retriever names them. */
    List<String> reserve() {
        Set<String> needed = Set.copyOf(needed());
        return retrievers.stream().flatMap(retriever -> retriever.ids.subList(retriever.depth, retriever.ids.size()).stream())
            .distinct().filter(id -> needed.contains(id) == false).toList();
    }

    /** Only the documents with these ids, in one index, which has each id once. */
    Nearest only(List<String> ids) {
        return new Nearest(List.of(Retriever.of(ids, ids.size())), uuids, Math.min(ids.size(), size), null);
    }

    /**
     * The query for these documents. conditions: clauses that they must meet, so that a graph finds enough that do. read: turns
     * the JSON of a query into the query, whose class may be of another plugin.
     */
    QueryBuilder query(List<Object> conditions, Function<Object, QueryBuilder> read) {
        BoolQueryBuilder any = QueryBuilders.boolQuery().minimumShouldMatch(1);
        for (Retriever retriever : retrievers) {
            if (retriever.ids != null) {
                any.should(QueryBuilders.idsQuery().addIds(retriever.ids.toArray(String[]::new)));
                continue;
            }
            Map<String, Object> options = new HashMap<>(Map.of("vector", retriever.vector, "k", retriever.k));
            if (conditions.isEmpty() == false) {
                options.put("filter", Map.of("bool", Map.of("filter", conditions)));
            }
            Map<String, Object> knn = Map.of("knn", Map.of(retriever.field, options));
            Map<String, Object> nested = Map.of("path", retriever.path, "query", knn, "score_mode", "max");
            any.should(read.apply(retriever.path.isEmpty() ? knn : Map.of("nested", nested)));
        }
        return any;
    }
}
