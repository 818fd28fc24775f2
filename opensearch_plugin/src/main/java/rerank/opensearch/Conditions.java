package rerank.opensearch;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.opensearch.common.regex.Regex;

/**
 * Conditions that every hit of a query meets, as filters for added documents. The structure of the query decides, never the
 * text of its words: a filter stays also if a user searches for its value. {@code rerank/engines/opensearch/restrictions.py} is
 * the same, and tests/conditions.json tests both.
 */
final class Conditions {
    /** The conditions of a query cannot be separated from its words. */
    static final class UnknownException extends RuntimeException {
        private static final long serialVersionUID = 1;

        UnknownException(String message) {
            super(message, null, false, false); // no stack trace: there can be one for every search
        }
    }

    /** Compound query -> the query that its hits match. */
    private static final Map<String, String> INNER = Map.of("function_score", "query", "script_score", "query",
        "constant_score", "filter", "boosting", "positive");
    /** Queries whose hits match one of their "queries". */
    private static final Set<String> ALTERNATIVES = Set.of("dis_max", "hybrid");
    /** Queries for other documents, which are kept as a whole. */
    private static final Set<String> JOINED = Set.of("nested", "has_child", "has_parent");
    /** Queries of the shape {field: text} or {field: {"query": text}}. */
    private static final Set<String> WORDS_OF_FIELD =
        Set.of("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix");
    /** Queries of the shape {"query": text, "fields": [field]}. */
    private static final Set<String> WORDS_OF_FIELDS =
        Set.of("multi_match", "combined_fields", "query_string", "simple_query_string");
    /** Queries for the nearest vectors: another retriever replaces them. */
    private static final Set<String> VECTORS = Set.of("knn", "neural", "neural_sparse");
    private static final Set<String> PARTS_OF_BOOL = Set.of("must", "filter", "should", "must_not", "mustNot",
        "minimum_should_match", "boost", "_name", "adjust_pure_negative");
    private static final Set<String> CONDITIONS = Set.of("filter", "must_not", "mustNot");
    private static final Set<String> OPERATORS = Set.of("AND", "OR", "NOT");
    private static final String SIGNS = " \t\n\r\u3000.,;'_";

    private final Collection<String> wordFields;
    /** Sets of texts: every hit matches a text of each set in word fields. */
    private final Set<Set<String>> texts = new HashSet<>();
    /** Whether the query searches for words or vectors. */
    private boolean hasSearch;

    private Conditions(Collection<String> wordFields) {
        this.wordFields = wordFields;
    }

    /**
     * Clauses that every hit of a query meets. Left out: matches of words in these fields and their sub-fields, and optional
     * clauses. Throws {@link UnknownException} if the conditions cannot be separated from the words.
     */
    static List<Object> of(Object query, Collection<String> wordFields) {
        Conditions reader = new Conditions(wordFields);
        List<Object> conditions = reader.read(query, true);
        if (reader.texts.size() > 1) {
            throw new UnknownException("the query needs matches of several texts, so one may be a condition");
        }
        return conditions;
    }

    private List<Object> read(Object query, boolean required) {
        if (query instanceof Map<?, ?> == false || ((Map<?, ?>) query).size() != 1) {
            throw new UnknownException("a query is no object with one name");
        }
        Map.Entry<?, ?> entry = ((Map<?, ?>) query).entrySet().iterator().next();
        String kind = Objects.toString(entry.getKey());
        Map<?, ?> inner = entry.getValue() instanceof Map<?, ?> map ? map : Map.of();
        if (kind.equals("match_all")) {
            return List.of();
        }
        if (kind.endsWith("_score") && inner.containsKey("min_score")) {
            throw unknown("min_score", kind);
        }
        if (kind.equals("bool")) {
            return ofBool(inner, required);
        }
        if (INNER.containsKey(kind)) {
            String name = INNER.get(kind);
            return inner.containsKey(name) ? read(inner.get(name), required) : List.of();
        }
        if (ALTERNATIVES.contains(kind)) {
            List<Object> conditions = new ArrayList<>();
            if (inner.containsKey("filter")) {
                conditions.add(inner.get("filter"));
            }
            conditions.addAll(alternatives(listed(inner.get("queries")), null, required));
            return conditions;
        }
        if (JOINED.contains(kind)) {
            refuseConditions(inner, kind);
            Conditions reader = new Conditions(wordFields);
            Object joined = inner.containsKey("query") ? inner.get("query") : Map.of("match_all", Map.of());
            List<Object> conditions = reader.read(joined, required);
            texts.addAll(reader.texts);
            hasSearch |= reader.hasSearch;
            return reader.hasSearch && conditions.isEmpty() ? List.of() : List.of(query);
        }
        if (VECTORS.contains(kind)) {
            refuseConditions(inner, kind);
            hasSearch = true;
            return List.of();
        }
        return isWords(kind, inner, required) ? List.of() : List.of(query);
    }

    private List<Object> ofBool(Map<?, ?> inner, boolean required) {
        for (Object name : inner.keySet()) {
            if (PARTS_OF_BOOL.contains(name) == false) {
                throw unknown(Objects.toString(name), "bool");
            }
        }
        List<?> must = listed(inner.get("must")), filters = listed(inner.get("filter"));
        List<Object> excluded = new ArrayList<>(listed(inner.get("must_not")));
        excluded.addAll(listed(inner.get("mustNot")));
        List<Object> conditions = new ArrayList<>();
        must.forEach(clause -> conditions.addAll(read(clause, required)));
        conditions.addAll(filters);
        if (excluded.isEmpty() == false) {
            conditions.add(Map.of("bool", Map.of("must_not", excluded)));
        }
        Object minimum = inner.get("minimum_should_match");
        if (minimum != null || must.isEmpty() && filters.isEmpty()) {
            boolean isRequired = required && "0".equals(Objects.toString(minimum)) == false;
            conditions.addAll(alternatives(listed(inner.get("should")), minimum, isRequired));
        }
        return conditions;
    }

    /**
     * The condition that {@code minimum} of the queries match (null: one), if they have conditions. A query without conditions
     * counts as matched. No document meets a minimum above the number of queries. required: whether every hit matches
     * {@code minimum} of them.
     */
    private List<Object> alternatives(List<?> queries, Object minimum, boolean required) {
        List<Conditions> readers = new ArrayList<>();
        List<List<Object>> conditionsOfQueries = new ArrayList<>();
        for (Object query : queries) {
            Conditions reader = new Conditions(wordFields);
            conditionsOfQueries.add(reader.read(query, required));
            readers.add(reader);
        }
        addTexts(readers, minimum);
        boolean all = conditionsOfQueries.stream().noneMatch(List::isEmpty);
        boolean any = conditionsOfQueries.stream().anyMatch(conditions -> conditions.isEmpty() == false);
        boolean isPossible = isNumberAbove(minimum, queries.size()) == false;
        if (queries.isEmpty() || isPossible && (any == false || minimum == null && all == false)) {
            return List.of();
        }
        List<Object> should = new ArrayList<>();
        for (List<Object> conditions : conditionsOfQueries) {
            should.add(conditions.isEmpty() ? Map.of("match_all", Map.of()) : Map.of("bool", Map.of("filter", conditions)));
        }
        Map<String, Object> bool = new LinkedHashMap<>();
        bool.put("should", should);
        bool.put("minimum_should_match", minimum == null ? 1 : minimum);
        return List.of(Map.of("bool", bool));
    }

    private static boolean isNumberAbove(Object minimum, int count) {
        String text = Objects.toString(minimum);
        return text.matches("[0-9]{1,9}") && Integer.parseInt(text) > count;
    }

    /** Add the texts of alternatives of which every hit matches {@code minimum} (null: one). */
    private void addTexts(List<Conditions> alternatives, Object minimum) {
        hasSearch |= alternatives.stream().anyMatch(reader -> reader.hasSearch);
        Set<Set<String>> all = new HashSet<>();
        alternatives.forEach(reader -> all.addAll(reader.texts));
        boolean isOneEnough = minimum == null || "1".equals(Objects.toString(minimum));
        boolean eachNeedsSeveral = alternatives.stream().allMatch(reader -> reader.texts.size() > 1);
        if (isOneEnough == false || eachNeedsSeveral) {
            texts.addAll(all);
        } else if (all.isEmpty() == false) {
            Set<String> union = new HashSet<>();
            all.forEach(union::addAll);
            texts.add(union);
        }
    }

    /** Whether a query searches for the words of the user. */
    private boolean isWords(String kind, Map<?, ?> inner, boolean required) {
        List<?> fields;
        Object value;
        if (WORDS_OF_FIELD.contains(kind) && inner.size() == 1) {
            Map.Entry<?, ?> entry = inner.entrySet().iterator().next();
            fields = List.of(entry.getKey());
            value = entry.getValue() instanceof Map<?, ?> options ? options.get("query") : entry.getValue();
        } else if (WORDS_OF_FIELDS.contains(kind)) {
            fields = listed(inner.get("fields"));
            fields = fields.isEmpty() ? listed(inner.get("default_field")) : fields;
            value = inner.get("query");
        } else {
            return false;
        }
        if (fields.isEmpty() == false && fields.stream().noneMatch(field -> isWordField(Objects.toString(field), wordFields))) {
            return false;
        }
        String text = Objects.toString(value);
        if (kind.endsWith("query_string") && isPlain(text) == false) {
            throw new UnknownException("the " + kind + " has operators or names of fields, which may be conditions");
        }
        hasSearch = true;
        if (required) {
            texts.add(Set.of(String.join(" ", words(text))));
        }
        return true;
    }

    /** Whether a field of a query is one of these fields, or a sub-field. A boost is left out. */
    static boolean isWordField(String field, Collection<String> wordFields) {
        int boost = field.indexOf('^');
        String name = boost < 0 ? field : field.substring(0, boost);
        return wordFields.stream().anyMatch(pattern -> Regex.simpleMatch(pattern, name)
            || Regex.simpleMatch(pattern + ".*", name)
            || name.contains("*") && pattern.contains("*") == false && Regex.simpleMatch(name, pattern));
    }

    /** Whether a query language reads only words in a text: letters, digits, spaces and a few signs. */
    private static boolean isPlain(String text) {
        return words(text).stream().noneMatch(OPERATORS::contains)
            && text.codePoints().allMatch(c -> Character.isLetterOrDigit(c) || SIGNS.indexOf(c) >= 0);
    }

    private static List<String> words(String text) {
        return Arrays.stream(text.split("[\\s\u3000]+")).filter(word -> word.isEmpty() == false).toList();
    }

    /** Conditions inside such a query are for other documents, or cannot be read. */
    private static void refuseConditions(Object value, String kind) {
        if (value instanceof Map<?, ?> map) {
            for (String name : CONDITIONS) {
                if (map.containsKey(name)) {
                    throw unknown(name, kind);
                }
            }
            map.values().forEach(inner -> refuseConditions(inner, kind));
        } else if (value instanceof List<?> list) {
            list.forEach(inner -> refuseConditions(inner, kind));
        }
    }

    private static UnknownException unknown(String name, String kind) {
        return new UnknownException("the query has " + name + " inside " + kind);
    }

    private static List<?> listed(Object value) {
        return value == null ? List.of() : value instanceof List<?> list ? list : List.of(value);
    }
}
