package rerank.opensearch;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.ConnectException;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.opensearch.core.action.ActionListener;
import org.opensearch.threadpool.Scheduler;

/** The rerank service of one pipeline, with a limit of concurrent calls. */
final class ScoringClient {
    private final Config config;
    private final boolean isAllowed;
    private final RerankPlugin plugin;
    private final BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler;
    private final Semaphore calls;
    private final CircuitBreaker breaker;

    /** isAllowed: whether the node may call the URL. */
    ScoringClient(Config config, boolean isAllowed, RerankPlugin plugin,
                  BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler) {
        this.config = config;
        this.isAllowed = isAllowed;
        this.plugin = plugin;
        this.scheduler = scheduler;
        this.calls = new Semaphore(config.maxConnections());
        this.breaker = new CircuitBreaker(config, plugin.stats);
    }

    /** A search could not be reranked. reason: the name of its counter. */
    static final class Failure extends RuntimeException {
        private static final long serialVersionUID = 1;
        final String reason;

        Failure(String reason, String message) {
            super(message, null, false, false); // no stack trace: there is one for every search
            this.reason = reason;
        }

        static Failure of(Exception e) {
            return e instanceof Failure known ? known : new Failure("error", e.toString());
        }
    }

    /** Why no call is sent now, or null. */
    String unreachable() {
        return isAllowed == false ? "not_allowed" : breaker.isOpen() ? "breaker_open" : null;
    }

    /**
     * Post a body; {@code done} gets the result of {@code read}, or a Failure, on a thread of the plugin's pool. longQuery: its
     * failure is not counted.
     */
    <T> void call(byte[] body, int maxAnswer, boolean longQuery, Function<byte[], T> read, ActionListener<T> done) {
        if (calls.tryAcquire() == false) {
            done.onFailure(new Failure("busy", "is busy"));
            return;
        }
        if (breaker.admit() == false) {
            calls.release();
            done.onFailure(new Failure("breaker_open", "failed too often"));
            return;
        }
        long start = System.nanoTime(), until = start + TimeUnit.MILLISECONDS.toNanos(config.timeout());
        CompletableFuture.completedFuture(body).thenCompose(bytes -> post(bytes, maxAnswer, until))
            // The service may have closed an idle connection.
            .exceptionallyCompose(error -> failure(error).reason.equals("connection") && System.nanoTime() < until
                ? post(body, maxAnswer, until) : CompletableFuture.failedFuture(error))
            .thenApply(response -> read.apply(checked(response)))
            .whenComplete((result, error) -> {
                Failure failure = error == null ? null : failure(error);
                breaker.count(failure, longQuery);
                calls.release();
                plugin.stats.called(System.nanoTime() - start);
                if (failure == null) {
                    done.onResponse(result);
                } else {
                    done.onFailure(failure);
                }
            });
    }

    private static byte[] checked(HttpResponse<byte[]> response) {
        int status = response.statusCode();
        if (status != 200) {
            throw new Failure("status_" + status, "answered with status " + status + ScoringResponse.refusal(status, response.body()));
        }
        return response.body();
    }

    /** Post a body. The answer comes on a thread of the plugin's pool. */
    private CompletableFuture<HttpResponse<byte[]>> post(byte[] body, int most, long until) {
        HttpRequest.Builder request = HttpRequest.newBuilder(config.url()).header("Content-Type", "application/octet-stream")
            .POST(HttpRequest.BodyPublishers.ofByteArray(body));
        if (plugin.token != null) {
            request.header("Authorization", "Bearer " + plugin.token);
        }
        CompletableFuture<HttpResponse<byte[]>> sent = plugin.http.sendAsync(request.build(), info -> limitedBody(most));
        long left = TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime());
        Scheduler.ScheduledCancellable timer =
            scheduler.apply(Math.max(left, 1), () -> plugin.pool.execute(() -> sent.cancel(true)));
        return sent.whenCompleteAsync((response, error) -> timer.cancel(), plugin.pool);
    }

    private Failure failure(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof Failure known) {
                return known;
            }
        }
        return switch (error instanceof CompletionException && error.getCause() != null ? error.getCause() : error) {
            case CancellationException e -> new Failure("timeout", "did not answer in " + config.timeout() + " ms");
            case ConnectException e -> new Failure("refused", "cannot be reached: " + e.getMessage());
            case IOException e -> new Failure("connection", "broke the connection: " + e.getMessage());
            case Throwable e -> new Failure("error", "could not be called, or its answer could not be understood: " + e);
        };
    }

    /** The body of an answer; a longer one is a failure. */
    private static HttpResponse.BodySubscriber<byte[]> limitedBody(int most) {
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        return HttpResponse.BodySubscribers.mapping(HttpResponse.BodySubscribers.ofByteArrayConsumer(part -> {
            part.ifPresent(body::writeBytes);
            if (body.size() > most) {
                throw new Failure("too_large", "answered too many bytes");
            }
        }), read -> body.toByteArray());
    }
}
