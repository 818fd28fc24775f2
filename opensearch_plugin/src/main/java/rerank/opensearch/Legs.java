package rerank.opensearch;

import java.nio.ByteBuffer;
import java.util.*;
import java.util.regex.Pattern;
import org.apache.lucene.search.BooleanClause;
import org.opensearch.index.query.QueryBuilder;
import org.opensearch.index.query.QueryBuilderVisitor;
import org.opensearch.search.SearchHit;

/**
 * Scores of named clauses of a query, which the service requests as {@code leg:NAME}. OpenSearch computes them with the hits. A
 * leg of a {@code hybrid} query without a name gets its position as a name until the search has ended.
 */
final class Legs {
    static final String PREFIX = "leg:";
    private static final Pattern NAME = Pattern.compile("[\\w-]{1,100}", Pattern.UNICODE_CHARACTER_CLASS); // as in stacks
    private static final int MOST = 16;
    private final Set<String> names = new HashSet<>();
    private final List<QueryBuilder> unnamed = new ArrayList<>();

    /** Find the clauses, and name those that the service requests by position. requested: features; null: all clauses. */
    Legs(QueryBuilder query, List<String> requested) {
        if (query == null || requested != null && requested.stream().noneMatch(Legs::isLeg)) {
            return;
        }
        List<QueryBuilder> children = new ArrayList<>();
        query.visit(new Visitor(0, query.getName().equals("hybrid") ? children : null));
        for (int i = 0; i < children.size(); i++) {
            String name = Integer.toString(i);
            if (children.get(i).queryName() == null && (requested == null || requested.contains(PREFIX + name)) && names.add(name)) {
                unnamed.add(children.get(i).queryName(name));
            }
        }
    }

    static boolean isLeg(String feature) {
        return feature.startsWith(PREFIX);
    }

    /** Whether clauses have names that the user has not given. */
    boolean areNamed() {
        return unnamed.isEmpty() == false;
    }

    /** All clauses that a stack can name. */
    List<String> features() {
        return names.stream().filter(name -> NAME.matcher(name).matches()).sorted().limit(MOST).map(PREFIX::concat).toList();
    }

    /** The features that a search can return: legs that the query does not have are left out. */
    List<String> available(List<String> features) {
        return features.stream().filter(feature -> isLeg(feature) == false || names.contains(feature.substring(PREFIX.length()))).toList();
    }

    /** The score of a hit, 8 bytes; none if the clause does not match. */
    static byte[] score(SearchHit hit, String feature) {
        Float score = hit.getMatchedQueriesAndScores().get(feature.substring(PREFIX.length()));
        double value = score == null ? 0 : Double.parseDouble(Float.toString(score)); // as in JSON
        return value == 0 ? new byte[0] : ByteBuffer.allocate(Double.BYTES).putDouble(value).array();
    }

    /** Remove the names that the user has not given. */
    void strip(SearchHit hit) {
        if (unnamed.isEmpty() == false) {
            Map<String, Float> own = new LinkedHashMap<>(hit.getMatchedQueriesAndScores());
            unnamed.forEach(leg -> own.remove(leg.queryName()));
            hit.matchedQueriesWithScores(own);
        }
    }

    /** Remove the names from the query. */
    void restore() {
        unnamed.forEach(leg -> leg.queryName(null));
        unnamed.clear();
    }

    /** Collects names of all clauses, and the clauses of the first level. */
    private final class Visitor implements QueryBuilderVisitor {
        private final int level;
        private final List<QueryBuilder> children;

        Visitor(int level, List<QueryBuilder> children) {
            this.level = level;
            this.children = children;
        }

        @Override
        public void accept(QueryBuilder query) {
            if (query.queryName() != null) {
                names.add(query.queryName());
            }
            if (level == 1 && children != null) {
                children.add(query);
            }
        }

        @Override
        public QueryBuilderVisitor getChildVisitor(BooleanClause.Occur occur) {
            return new Visitor(level + 1, children);
        }
    }
}
