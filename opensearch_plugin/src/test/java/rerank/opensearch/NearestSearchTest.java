package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.opensearch.core.action.ActionListener;
import org.opensearch.index.query.BoolQueryBuilder;
import org.opensearch.index.query.IdsQueryBuilder;
import org.opensearch.search.SearchHit;

class NearestSearchTest {
    private final List<List<String>> searches = new ArrayList<>();

    private static String retriever(int begin, int end, int depth) {
        String ids = IntStream.range(begin, end).mapToObj(i -> "\"" + i + "\"").collect(Collectors.joining(","));
        return "{\"name\": \"text\", \"depth\": " + depth + ", \"ids\": [" + ids + "]}";
    }

    private static Nearest nearest(String... retrievers) {
        String json = "{\"find\": [" + String.join(",", retrievers) + "], \"uuids\": [\"a\"], \"size\": 1000}";
        return Nearest.read(json.getBytes(StandardCharsets.UTF_8));
    }

    /** The ids that are found, in the order of the searches, if a document with a number exists and meets the conditions. */
    private List<Integer> found(Nearest nearest, Predicate<Integer> meets) {
        List<Added> results = new ArrayList<>();
        new NearestSearch(nearest, (subset, listener) -> {
            BoolQueryBuilder query = (BoolQueryBuilder) subset.query(List.of(), value -> null);
            List<String> ids = query.should().stream().flatMap(clause -> ((IdsQueryBuilder) clause).ids().stream()).toList();
            searches.add(ids);
            assertEquals(ids.size(), subset.size());
            List<SearchHit> hits = ids.stream().map(Integer::valueOf).filter(meets).map(SearchHit::new).toList();
            listener.onResponse(new Added(hits, Set.of(), null));
        }).begin(ActionListener.wrap(results::add, e -> fail(e)));
        assertEquals(1, results.size());
        return results.get(0).hits().stream().map(SearchHit::docId).toList();
    }

    private static Set<Integer> numbers(int begin, int end, Predicate<Integer> meets) {
        return IntStream.range(begin, end).boxed().filter(meets).collect(Collectors.toSet());
    }

    private List<Integer> sizes() {
        return searches.stream().map(List::size).toList();
    }

    @Test
    void onlyTheNeededDocumentsAreSearchedIfAllMeetTheConditions() {
        assertEquals(numbers(0, 100, i -> true), Set.copyOf(found(nearest(retriever(0, 400, 100)), i -> true)));
        assertEquals(List.of(100), sizes());
    }

    @Test
    void aFewMissingDocumentsNeedAFewMore() {
        List<Integer> ids = found(nearest(retriever(0, 400, 100)), i -> i % 20 != 0);
        assertTrue(Set.copyOf(ids).containsAll(numbers(0, 105, i -> i % 20 != 0)));
        assertEquals(List.of(100, 16), sizes());
        searches.clear();
        found(nearest(retriever(0, 400, 100)), i -> i % 4 != 0);
        assertEquals(List.of(100, 67), sizes(), "two documents for each missing one, of which three of four meet the conditions");
    }

    @Test
    void everyDocumentIsSearchedOnceIfTooFewMeetTheConditions() {
        assertEquals(numbers(0, 400, i -> i % 3 == 0), Set.copyOf(found(nearest(retriever(0, 400, 150)), i -> i % 3 == 0)));
        assertEquals(List.of(150, 250), sizes());
        assertEquals(400, searches.stream().flatMap(List::stream).distinct().count());
        searches.clear();
        assertEquals(List.of(), found(nearest(retriever(0, 400, 100)), i -> false));
        assertEquals(List.of(100, 300), sizes());
    }

    @Test
    void theBestThatMeetTheConditionsAreAmongThoseThatAreFound() {
        Random random = new Random(7);
        for (int turn = 0; turn < 300; turn++) {
            double share = random.nextDouble();
            Set<Integer> meeting = numbers(0, 200, i -> random.nextDouble() < share);
            List<Integer> best = meeting.stream().sorted().limit(50).toList();
            Set<Integer> ids = Set.copyOf(found(nearest(retriever(0, 200, 50)), meeting::contains));
            assertTrue(ids.containsAll(best), turn + ": " + best + " " + ids);
        }
    }

    @Test
    void severalRetrieversSearchAllOthersTogether() {
        Nearest nearest = nearest(retriever(0, 40, 10), retriever(5, 45, 10));
        found(nearest, i -> true);
        assertEquals(List.of(15), sizes());
        searches.clear();
        assertEquals(numbers(0, 45, i -> i != 3), Set.copyOf(found(nearest, i -> i != 3)));
        assertEquals(List.of(15, 30), sizes());
    }

    @Test
    void withoutADepthAllAreSearchedTogether() {
        String older = "{\"find\": [{\"name\": \"text\", \"ids\": [\"1\", \"2\"]}], \"uuids\": [\"a\"], \"size\": 2}";
        assertFalse(Nearest.read(older.getBytes(StandardCharsets.UTF_8)).hasReserve());
        assertFalse(nearest(retriever(0, 4, 9)).hasReserve());
        assertTrue(nearest(retriever(0, 4, 3)).hasReserve());
    }

    @Test
    void withAFieldOfVectorsAllAreSearchedTogether() {
        String field = "{\"field\": \"rerank_features.a:knn\", \"path\": \"\", \"vector\": [1.5], \"k\": 3}";
        assertFalse(nearest(field, retriever(0, 4, 3)).hasReserve());
        assertFalse(nearest(field).hasReserve());
    }

    @Test
    void aSearchHasAtMostTheHitsThatTheServiceAllows() {
        assertEquals(1_000, nearest(retriever(0, 2_000, 1_500)).only(numbers(0, 1_500, i -> true).stream().map(String::valueOf).toList()).size());
    }

    @Test
    void aFailureOfALaterSearchAddsNothing() {
        List<Added> results = new ArrayList<>();
        Deque<Added> answers = new ArrayDeque<>(List.of(new Added(List.of(new SearchHit(0)), Set.of(), null), Added.none("search")));
        new NearestSearch(nearest(retriever(0, 4, 2)), (subset, listener) -> listener.onResponse(answers.poll()))
            .begin(ActionListener.wrap(results::add, e -> fail(e)));
        assertEquals(List.of(Added.none("search")), results);
        assertTrue(answers.isEmpty());
    }
}
