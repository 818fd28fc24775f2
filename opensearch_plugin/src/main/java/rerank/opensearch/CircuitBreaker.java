package rerank.opensearch;

import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import rerank.opensearch.ScoringClient.Failure;

/** After several failures of the service, calls are skipped for a time. */
final class CircuitBreaker {
    private static final Logger logger = LogManager.getLogger(CircuitBreaker.class);
    private static final long CLOSED = 0;
    /** Failures of one search; the service works. */
    private static final Set<String> HARMLESS = Set.of("status_400", "status_413", "status_422");

    private final Config config;
    private final Stats stats;
    private final AtomicInteger failures = new AtomicInteger(); // in a row
    private final AtomicLong openUntil = new AtomicLong(CLOSED); // System.nanoTime()

    CircuitBreaker(Config config, Stats stats) {
        this.config = config;
        this.stats = stats;
    }

    /** Whether calls are skipped now. */
    boolean isOpen() {
        long until = openUntil.get();
        return until != CLOSED && System.nanoTime() - until < 0;
    }

    /** Whether this call may be sent; after a pause, one call may. */
    boolean admit() {
        long until = openUntil.get();
        return until == CLOSED || isOpen() == false && openUntil.compareAndSet(until, afterPause());
    }

    private long afterPause() {
        // At least the timeout of a trial call; never CLOSED.
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Math.max(config.breakerPause(), config.timeout())) | 1;
    }

    /** Whether another service would fail in the same way. */
    static boolean blamesTheSearch(String reason) {
        return reason != null && HARMLESS.contains(reason);
    }

    /** Count the result of a call. longQuery: its failure is not counted. */
    void count(Failure failure, boolean longQuery) {
        if (failure == null || blamesTheSearch(failure.reason)) {
            close();
            return;
        }
        logger.debug("{} {}", config.url(), failure.getMessage());
        if (longQuery == false) {
            int inRow = failures.incrementAndGet();
            if (inRow >= config.breakerFailures()) {
                open(failure, inRow);
            }
        }
    }

    private void close() {
        failures.set(0);
        if (openUntil.getAndSet(CLOSED) != CLOSED) {
            logger.info("{} works again", config.url());
        }
    }

    private void open(Failure failure, int inRow) {
        if (openUntil.getAndSet(afterPause()) == CLOSED) {
            stats.breakerOpened.increment();
            logger.warn("{} {}, the {}th failure in a row; not called for a while", config.url(), failure.getMessage(), inRow);
        }
    }
}
