package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class StatsTest {
    private final Stats stats = new Stats();

    @Test
    void outcomesOfSearchesAreCounted() {
        stats.count("reranked", null);
        stats.count("reranked", null);
        stats.count("passed", "sort");
        stats.count("failed", "timeout");
        stats.count("failed", "timeout");
        stats.breakerOpened.increment();
        stats.called(3_000_000);
        stats.called(1_000_000);
        Map<String, Object> read = stats.read("node");
        assertEquals("node", read.get("node"));
        assertEquals(2L, read.get("reranked"));
        assertEquals(Map.of("sort", 1L), read.get("passed"));
        assertEquals(Map.of("timeout", 2L), read.get("failed"));
        assertEquals(1L, read.get("breaker_opened"));
        assertEquals(Map.of("count", 2L, "total_ms", 4.0, "max_ms", 3.0), read.get("calls"));
    }

    @Test
    void shadowSearchesAreCounted() {
        assertEquals(Map.of("count", 0L, "moved", 0L, "total_ms", 0.0), stats.read("node").get("shadow"));
        stats.shadowed(3, 90_000_000); // the first is slow, and its time is not counted
        stats.shadowed(1, 2_000_000);
        Map<?, ?> shadow = (Map<?, ?>) stats.read("node").get("shadow");
        assertEquals(List.of(2L, 4L, 2.0), List.of(shadow.get("count"), shadow.get("moved"), shadow.get("total_ms")));
    }

    @Test
    void reasonsAboveTheLimitAreCountedTogether() {
        for (int i = 0; i < 1_000; i++) {
            stats.count("passed", "reason " + i);
        }
        stats.count("passed", "reason 0");
        Map<?, ?> passed = (Map<?, ?>) stats.read("node").get("passed");
        assertEquals(101, passed.size());
        assertEquals(900L, passed.get("other"));
        assertEquals(2L, passed.get("reason 0"));
    }
}
