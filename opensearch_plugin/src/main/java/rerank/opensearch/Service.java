package rerank.opensearch;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.ConnectException;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Set;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.opensearch.core.action.ActionListener;
import org.opensearch.threadpool.Scheduler;

/** The rerank service as one pipeline sees it: how many calls it gets at once, and whether calling it is worth it. */
final class Service {
    private static final Logger logger = LogManager.getLogger(Service.class);
    private static final long CLOSED = 0;
    /** These blame one search, and show that the service lives. */
    private static final Set<String> HARMLESS = Set.of("status_400", "status_413", "status_422");

    private final Config config;
    private final RerankPlugin plugin;
    private final BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler;
    private final Semaphore connections;
    private final AtomicInteger failures = new AtomicInteger(); // in a row
    private final AtomicLong openUntil = new AtomicLong(CLOSED); // System.nanoTime()

    Service(Config config, RerankPlugin plugin, BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler) {
        this.config = config;
        this.plugin = plugin;
        this.scheduler = scheduler;
        this.connections = new Semaphore(config.maxConnections());
    }

    /** A search could not be reranked. reason: the name of its counter. */
    static final class Failure extends RuntimeException {
        private static final long serialVersionUID = 1;
        final String reason;

        Failure(String reason, String message) {
            super(message, null, false, false); // one for every search while the service is down: no stack trace
            this.reason = reason;
        }

        static Failure of(Exception e) {
            return e instanceof Failure known ? known : new Failure("error", e.toString());
        }
    }

    /** Whether calls are skipped now. */
    boolean isOpen() {
        long until = openUntil.get();
        return until != CLOSED && System.nanoTime() - until < 0;
    }

    /** Whether this call may go out; after the breaker's pause one may, until it has shown how the service is. */
    private boolean admit() {
        long until = openUntil.get();
        return until == CLOSED || isOpen() == false && openUntil.compareAndSet(until, afterPause());
    }

    private long afterPause() {
        // Not before a trial call has timed out; never CLOSED.
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Math.max(config.breakerPause(), config.timeout())) | 1;
    }

    /** Post a body; {@code done} gets what {@code read} makes of the answer, or a Failure. Never waits. */
    <T> void call(byte[] body, int maxAnswer, Function<byte[], T> read, ActionListener<T> done) {
        boolean free = connections.tryAcquire();
        if (free == false || admit() == false) {
            connections.release(free ? 1 : 0);
            done.onFailure(free ? new Failure("breaker_open", "failed too often") : new Failure("busy", "is busy"));
            return;
        }
        long start = System.nanoTime();
        CompletableFuture<byte[]> answer;
        try {
            HttpRequest.Builder request = HttpRequest.newBuilder(config.url())
                .header("Content-Type", "application/octet-stream").POST(HttpRequest.BodyPublishers.ofByteArray(body));
            String secret = plugin.token;
            HttpRequest ready = (secret == null ? request : request.header("Authorization", "Bearer " + secret)).build();
            // That the service has closed an idle connection may only show now, so what breaks is sent once more.
            answer = send(ready, maxAnswer, start).exceptionallyCompose(
                e -> unwrap(e) instanceof IOException broken && broken instanceof ConnectException == false
                    ? send(ready, maxAnswer, start) : CompletableFuture.failedFuture(e));
        } catch (RuntimeException e) {
            answer = CompletableFuture.failedFuture(e);
        }
        answer.thenApply(read).whenComplete((result, error) -> {
            connections.release();
            plugin.stats.called(System.nanoTime() - start);
            Failure failure = error == null ? null : failure(unwrap(error));
            judge(failure);
            if (failure == null) {
                done.onResponse(result);
            } else {
                done.onFailure(failure);
            }
        });
    }

    private CompletableFuture<byte[]> send(HttpRequest request, int maxAnswer, long start) {
        CompletableFuture<HttpResponse<byte[]>> sent = plugin.http.sendAsync(request, info -> limited(maxAnswer));
        // HttpRequest.timeout ends with the headers, but a body may hang, too. Cancelling also closes the connection.
        long left = config.timeout() - TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start);
        Scheduler.ScheduledCancellable timer = scheduler.apply(Math.max(left, 1), () -> sent.cancel(true));
        return sent.whenComplete((response, error) -> timer.cancel()).thenApply(response -> {
            if (response.statusCode() != 200) {
                throw new Failure("status_" + response.statusCode(), "answered with status " + response.statusCode());
            }
            return response.body();
        });
    }

    /** A body that is given up when it grows too large (BodyHandlers.limiting is in Java 25 only). */
    private static HttpResponse.BodySubscriber<byte[]> limited(int max) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        return HttpResponse.BodySubscribers.mapping(HttpResponse.BodySubscribers.ofByteArrayConsumer(part -> {
            if (bytes.size() + part.map(p -> p.length).orElse(0) > max) {
                throw new Failure("too_large", "answered more than " + max + " bytes");
            }
            part.ifPresent(bytes::writeBytes);
        }), end -> bytes.toByteArray());
    }

    private Failure failure(Throwable error) {
        return switch (error) {
            case Failure known -> known;
            case CancellationException e -> new Failure("timeout", "did not answer in " + config.timeout() + " ms");
            case ConnectException e -> new Failure("refused", "cannot be reached: " + e.getMessage());
            case IOException e when e.getCause() instanceof Failure known -> known;
            case IOException e -> new Failure("connection", "broke the connection: " + e.getMessage());
            default -> new Failure("error", "could not be called: " + error);
        };
    }

    private void judge(Failure failure) {
        if (failure == null || HARMLESS.contains(failure.reason)) {
            failures.set(0);
            if (openUntil.getAndSet(CLOSED) != CLOSED) {
                logger.info("{} works again", config.url());
            }
            return;
        }
        int inRow = failures.incrementAndGet();
        logger.debug("{} {}", config.url(), failure.getMessage());
        if (inRow >= config.breakerFailures() && openUntil.getAndSet(afterPause()) == CLOSED) {
            plugin.stats.breakerOpened.increment();
            logger.warn("{} {}, the {}th failure in a row; not called for a while", config.url(), failure.getMessage(), inRow);
        }
    }

    private static Throwable unwrap(Throwable error) {
        return error instanceof CompletionException && error.getCause() != null ? error.getCause() : error;
    }
}
