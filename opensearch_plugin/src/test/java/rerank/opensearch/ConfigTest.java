package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.net.URI;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import org.opensearch.OpenSearchParseException;

class ConfigTest {
    static Config read(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(Map.of("url", "http://127.0.0.1:8080"));
        all.putAll(settings);
        Config config = Config.read("tag", all);
        assertEquals(Map.of(), all, "all settings must be read, because unread settings are refused");
        return config;
    }

    @Test
    void defaults() {
        URI url = URI.create("http://127.0.0.1:8080/v1/hook");
        assertEquals(new Config(List.of(url), null, List.of(), false, 100, 3, null, 1_000, false, true, false, List.of(), false, 128, 5, 5_000), read(Map.of()));
    }

    @Test
    void everySettingIsRead() {
        Map<String, Object> settings = new HashMap<>(Map.of("url", "https://host/path//", "stack", "tfidf,text", "depth", 200,
            "timeout", 50, "on_failure", "error", "fetch", "candidates", "max_connections", 1, "breaker_failures", 2, "breaker_pause", 3));
        settings.putAll(Map.of("stacks", List.of("bm25", "text*0.5 + field:year*0.5"), "raw_values", true, "min_score", 0.5, "collapse_factor", 2,
            "retrieve", true, "words", List.of("body")));
        Config config = read(settings);
        assertEquals(new Config(
            List.of(URI.create("https://host/path/v1/hook")), "tfidf,text", List.of("bm25", "text*0.5+field:year*0.5"), true, 200, 2, 0.5, 50, true, false, true, List.of("body"), false, 1, 2, 3), config);
        assertTrue(read(Map.of("shadow", true)).shadow());
        assertEquals("https://host/path", Config.base(config.urls().get(0)));
    }

    @Test
    void severalServicesAreAListOrHaveCommas() {
        List<URI> urls = List.of(URI.create("http://a:1/v1/hook"), URI.create("http://b:2/v1/hook"));
        assertEquals(urls, read(Map.of("url", List.of("http://a:1", "http://b:2/", "http://a:1/"))).urls());
        assertEquals(urls, read(Map.of("url", "http://a:1, http://b:2")).urls());
        for (Object wrong : List.of(List.of(), List.of("http://a:1", 2), "http://a:1,", numbered(17))) {
            assertThrows(OpenSearchParseException.class, () -> read(Map.of("url", wrong)), wrong.toString());
        }
    }

    private static List<String> numbered(int count) {
        return IntStream.range(0, count).mapToObj(i -> "http://a:" + (i + 1)).toList();
    }

    @ParameterizedTest
    @CsvSource({"100, 3, 300", "400, 3, 1000", "2000, 3, 2000", "50, 1, 50"})
    void groupsNeedMoreCandidatesWithinTheLimitOfTheService(int depth, int factor, int candidates) {
        assertEquals(candidates, read(Map.of("depth", depth, "collapse_factor", factor)).groupedDepth());
    }

    @Test
    void aSearchMayNameTheStacksOfThePipeline() {
        Config config = read(Map.of("stack", "tfidf,text", "stacks", List.of("text*0.5 + field:year*0.5")));
        assertTrue(config.allowsStack("tfidf, text"));
        assertTrue(config.allowsStack("text*0.5+field:year*0.5"));
        assertFalse(config.allowsStack("text*0.4+field:year*0.6"));
        assertFalse(read(Map.of()).allowsStack("bm25"));
    }

    @ParameterizedTest
    @CsvSource({
        "http://a:1, http://a:1, true", "http://a:1/, http://a:1, true", "http://a:1, http://a:1/, true",
        "http://a:1, http://a:12, false", "http://a:1, https://a:1, false", "http://a:1, http://a:1/path, false",
        "http://a:1/path, http://a:1/path, true", "http://a:*, http://a:12, true", "http://a:*, http://a:12/path, false",
        "http://a:*, http://a, false", "http://a.b:*, http://axb:1, false", "*, http://a:1, false", "http://*:*, http://a:1, false",
    })
    void urlsAreAllowedByName(String allowed, String url, boolean expected) {
        assertEquals(expected, Config.allows(List.of("http://other", allowed), read(Map.of("url", url)).urls().get(0)));
        assertFalse(Config.allows(List.of(), read(Map.of("url", url)).urls().get(0)));
    }

    @ParameterizedTest
    @CsvSource({"depth, 0", "depth, 10001", "timeout, 0", "timeout, 60001", "max_connections, 0", "breaker_failures, 0",
        "breaker_pause, 3600001", "on_failure, never", "fetch, all", "min_score, 1.1", "min_score, -0.1", "min_score, NaN"})
    void whatCannotBeIsRefused(String name, String value) {
        String message = assertThrows(OpenSearchParseException.class, () -> read(Map.of(name, value))).getMessage();
        assertTrue(message.startsWith("[" + name + "] must be "), message);
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "host:80", "ftp://host", "http://", "http://user:secret@host", "http://host?a=b", "http://host#a",
        "http://a b", "http://a:0", "http://a:65536", "http://a/päth"})
    void urlsThatCannotBeCalled(String url) {
        String message = assertThrows(OpenSearchParseException.class, () -> read(Map.of("url", url))).getMessage();
        assertEquals("[url] must look like https://host:port", message);
    }
}
