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
    private static final Set<String> REFUSALS = Set.of("status_400", "status_413", "status_422");
    private static final long LOG_PAUSE = TimeUnit.SECONDS.toNanos(10);

    private final String url;
    private final Config config;
    private final Stats stats;
    private final AtomicInteger failures = new AtomicInteger(); // in a row
    private final AtomicLong nextLog = new AtomicLong(System.nanoTime());
    private final AtomicLong openUntil = new AtomicLong(CLOSED); // System.nanoTime()

    /** url: of the service, for the log. */
    CircuitBreaker(String url, Config config, Stats stats) {
        this.url = url;
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

    /** Whether the service does not accept a call. */
    static boolean isRefused(String reason) {
        return reason != null && REFUSALS.contains(reason);
    }

    /** Whether a call failed because of its search, while the service works. */
    private static boolean isOfTheSearch(Failure failure) {
        return isRefused(failure.reason) || failure.reason.equals("status_500");
    }

    /** Count the result of a call. longQuery: its failure is not counted. */
    void count(Failure failure, boolean longQuery) {
        if (failure != null) {
            log(failure);
        }
        if (failure == null || isOfTheSearch(failure)) {
            close();
            return;
        }
        if (longQuery == false) {
            int inRow = failures.incrementAndGet();
            if (inRow >= config.breakerFailures()) {
                open(failure, inRow);
            }
        }
    }

    /** Users see only the reason: the message of the service can name fields that they may not see. */
    private void log(Failure failure) {
        long now = System.nanoTime(), due = nextLog.get();
        if (now - due >= 0 && nextLog.compareAndSet(due, now + LOG_PAUSE)) {
            logger.warn("{} {}", url, failure.getMessage().replaceAll("\\p{Cntrl}", " "));
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
