package rerank.opensearch;

import java.net.URI;
import java.util.function.BiFunction;
import org.opensearch.threadpool.Scheduler;

/** One of the services of a pipeline: its URL, its idle connections, and its circuit breaker. */
final class ServiceEndpoint {
    final CircuitBreaker breaker;
    final ConnectionPool connections;
    private final String base;

    /** url: of the path {@link Protocol#PATH}. scheduler: runs a task, which does not block, after so many milliseconds. */
    ServiceEndpoint(URI url, Config config, Stats stats, BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler) {
        this.base = Config.base(url);
        this.breaker = new CircuitBreaker(base, config, stats);
        this.connections = new ConnectionPool(ConnectionPool.LONGEST_IDLE, scheduler);
    }

    /** The URL of a path of the service. */
    URI url(String path) {
        return URI.create(base + path);
    }
}
