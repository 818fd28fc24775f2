package rerank.opensearch;

import java.net.URI;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import rerank.opensearch.ScoringClient.Failure;

/** One URL of a service, and whether calling it is worth it. */
final class CircuitBreaker {
    private static final Logger logger = LogManager.getLogger(CircuitBreaker.class);
    private static final long CLOSED = 0;
    /** These blame one search, and show that the service lives. */
    private static final Set<String> HARMLESS = Set.of("status_400", "status_413", "status_422");
    /** It answered that it failed: it does so for everybody, or at what these searches hold. */
    private static final Set<String> UNCLEAR = Set.of("status_500", "status_502", "status_504");
    private static final int LONGEST_PROOF = 1 << 20;

    final URI url;
    private final Config config;
    private final Stats stats;
    private final AtomicInteger failures = new AtomicInteger(); // in a row
    private final AtomicLong openUntil = new AtomicLong(CLOSED); // System.nanoTime()
    private final AtomicBoolean proving = new AtomicBoolean();
    private volatile byte[] answered; // the last call that went well

    CircuitBreaker(URI url, Config config, Stats stats) {
        this.url = url;
        this.config = config;
        this.stats = stats;
    }

    /** Whether it failed so often that it is called by one search at a time at most, to see whether it works again. */
    boolean isSick() {
        return openUntil.get() != CLOSED;
    }

    /** Whether calls are skipped now. */
    boolean isOpen() {
        long until = openUntil.get();
        return until != CLOSED && System.nanoTime() - until < 0;
    }

    /** Whether this call may go out; after the breaker's pause one may, until it has shown how the service is. */
    boolean admit() {
        long until = openUntil.get();
        return until == CLOSED || isOpen() == false && openUntil.compareAndSet(until, afterPause());
    }

    private long afterPause() {
        // Not before a trial call has timed out; never CLOSED.
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Math.max(config.breakerPause(), config.timeout())) | 1;
    }

    /** Whether another service would say the same. */
    static boolean blamesTheSearch(Failure failure) {
        return HARMLESS.contains(failure.reason);
    }

    /**
     * Hear what became of a call. longQuery: its failure says nothing of the service.
     *
     * @return a call that went well before, to be sent once more and told to {@link #proved}: whether it does so now
     *         tells whose fault the failures are. Else null.
     */
    byte[] judge(Failure failure, byte[] body, boolean longQuery) {
        if (failure == null || blamesTheSearch(failure)) {
            if (failure == null && body.length <= LONGEST_PROOF) {
                answered = body;
            }
            close();
            return null;
        }
        logger.debug("{} {}", url, failure.getMessage());
        int inRow = longQuery ? failures.get() : failures.incrementAndGet();
        if (inRow < config.breakerFailures()) {
            return null;
        }
        byte[] proof = answered;
        if (UNCLEAR.contains(failure.reason) == false || proof == null) {
            open(failure, inRow);
            return null;
        }
        return proving.compareAndSet(false, true) ? proof : null;
    }

    /** Hear what became of the call that went well before. */
    void proved(Failure failure) {
        proving.set(false);
        int inRow = failures.get();
        if (failure == null || blamesTheSearch(failure)) {
            close();
        } else if (inRow >= config.breakerFailures()) { // and none has gone well meanwhile
            open(failure, inRow);
        }
    }

    private void close() {
        failures.set(0);
        if (openUntil.getAndSet(CLOSED) != CLOSED) {
            logger.info("{} works again", url);
        }
    }

    private void open(Failure failure, int inRow) {
        if (openUntil.getAndSet(afterPause()) == CLOSED) {
            stats.breakerOpened.increment();
            logger.warn("{} {}, the {}th failure in a row; not called for a while", url, failure.getMessage(), inRow);
        }
    }
}
