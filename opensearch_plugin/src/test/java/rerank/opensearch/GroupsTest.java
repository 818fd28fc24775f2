package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.opensearch.Version;
import org.opensearch.cluster.metadata.IndexMetadata;
import org.opensearch.cluster.metadata.MappingMetadata;
import org.opensearch.common.document.DocumentField;
import org.opensearch.common.settings.Settings;
import org.opensearch.index.query.QueryBuilders;
import org.opensearch.search.SearchHit;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.search.collapse.CollapseBuilder;

class GroupsTest {
    private static final Map<String, Object> MAPPING = Map.of("properties", Map.of(
        "tag", Map.of("type", "keyword"), "year", Map.of("type", "integer"), "day", Map.of("type", "date"),
        "plain", Map.of("type", "keyword", "doc_values", false),
        "title", Map.of("type", "text", "fields", Map.of("raw", Map.of("type", "keyword"))),
        "author", Map.of("properties", Map.of("id", Map.of("type", "long")))));

    private static IndexMetadata index(Map<String, Object> mapping) {
        return IndexMetadata.builder("books").settings(Settings.builder().put("index.version.created", Version.CURRENT)
            .put("index.uuid", "u" + mapping.hashCode())).numberOfShards(1).numberOfReplicas(0)
            .putMapping(new MappingMetadata("_doc", mapping)).build();
    }

    private static SearchSourceBuilder by(String field) {
        return new SearchSourceBuilder().query(QueryBuilders.matchQuery("title", "words")).collapse(new CollapseBuilder(field));
    }

    @ParameterizedTest
    @CsvSource({"tag, true", "year, true", "title.raw, true", "author.id, true", "day, false", "plain, false", "title, false",
        "author, false", "no, false", "tag.no, false"})
    void fieldsThatOpenSearchCanGroupBy(String field, boolean canGroup) {
        assertEquals(canGroup ? new Groups(field) : null, Groups.of(by(field), List.of(index(MAPPING))));
        IndexMetadata other = index(Map.of("properties", Map.of("other", Map.of("type", "keyword"))));
        assertNull(Groups.of(by(field), List.of(index(MAPPING), other)));
    }

    @Test
    void searchesWithoutIndicesOfThisClusterAreNotGrouped() {
        assertNull(Groups.of(by("tag"), List.of()));
        assertNull(Groups.of(new SearchSourceBuilder(), List.of(index(MAPPING))));
        assertNull(Groups.of(null, List.of(index(MAPPING))));
    }

    @Test
    void theFirstHitOfEachGroupStays() {
        List<Object> values = java.util.Arrays.asList("a", null, "b", "a", null, "c");
        List<SearchHit> hits = IntStream.range(0, values.size()).mapToObj(i -> {
            SearchHit hit = new SearchHit(i);
            if (values.get(i) != null) {
                hit.setDocumentField("tag", new DocumentField("tag", List.of(values.get(i))));
            }
            return hit;
        }).toList();
        List<ScoringResponse.Hit> ranked = List.of(5, 4, 3, 2, 1, 0).stream().map(i -> new ScoringResponse.Hit(i, -i)).toList();
        ScoringRequest request = new ScoringRequest(null, hits.subList(0, 4), 4, hits.subList(4, 6));
        assertEquals(List.of(5, 4, 3, 2), new Groups("tag").first(ranked, request).stream().map(ScoringResponse.Hit::position).toList());
        assertTrue(new Groups("tag").areSingle(hits.toArray(SearchHit[]::new)));
        hits.get(2).setDocumentField("tag", new DocumentField("tag", List.of("x", "y")));
        assertFalse(new Groups("tag").areSingle(hits.toArray(SearchHit[]::new)));
    }

    @Test
    void otherFormsOfTheFieldAreRecognized() {
        Groups groups = new Groups("year");
        assertFalse(groups.isShownOtherwise(by("year").docValueField("year").docValueField("tag", "x")));
        assertTrue(groups.isShownOtherwise(by("year").docValueField("year", "epoch")));
        assertTrue(groups.isShownOtherwise(by("year").docValueField("ye*")));
        assertTrue(groups.isShownOtherwise(by("year").fetchField("*")));
    }
}
