package rerank.opensearch;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.ConnectException;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BiConsumer;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.opensearch.threadpool.Scheduler;

/** The rerank service as one pipeline sees it: how many calls it gets at once, and whether calling it is worth it. */
final class Service {
    private static final Logger logger = LogManager.getLogger(Service.class);
    private static final long CLOSED = 0;

    final String url;
    private final Config config;
    private final HttpClient client;
    private final BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler;
    private final Supplier<String> token;
    private final Stats stats;
    private final Semaphore connections;
    private final AtomicInteger failures = new AtomicInteger();
    private final AtomicLong openUntil = new AtomicLong(CLOSED); // System.nanoTime()

    Service(
        Config config,
        HttpClient client,
        BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler,
        Supplier<String> token,
        Stats stats
    ) {
        this.config = config;
        this.url = config.url().toString();
        this.client = client;
        this.scheduler = scheduler;
        this.token = token;
        this.stats = stats;
        this.connections = new Semaphore(config.maxConnections());
        stats.add(this);
    }

    /** Whether calls are skipped now. */
    boolean isOpen() {
        long until = openUntil.get();
        return until != CLOSED && System.nanoTime() - until < 0;
    }

    /** Whether this call may go out; after the breaker's pause only one may, until it has shown how the service is. */
    private boolean admit() {
        long until = openUntil.get();
        return until == CLOSED || System.nanoTime() - until >= 0 && openUntil.compareAndSet(until, pauseFromNow());
    }

    private long pauseFromNow() {
        // At least as long as the trial may take; 0 means closed.
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Math.max(config.breakerPause(), config.timeout())) | 1;
    }

    /** Post a body; {@code done} gets what {@code read} makes of the answer, or a Failure. Never blocks. */
    <T> void call(byte[] body, int maxAnswer, Function<byte[], T> read, BiConsumer<T, Failure> done) {
        if (connections.tryAcquire() == false) {
            done.accept(null, new Failure("busy", config.maxConnections() + " calls are under way"));
            return;
        }
        if (admit() == false) {
            connections.release();
            done.accept(null, new Failure("breaker_open", "the last calls failed; not called"));
            return;
        }
        long start = System.nanoTime();
        CompletionStage<byte[]> answer;
        try {
            HttpRequest.Builder request = HttpRequest.newBuilder(config.url())
                .header("Content-Type", "application/json")
                .header("Accept", "application/json")
                .POST(HttpRequest.BodyPublishers.ofByteArray(body));
            String secret = token.get();
            if (secret != null) {
                request.header("Authorization", "Bearer " + secret);
            }
            HttpRequest ready = request.build();
            // A connection that the service has closed while idle is only noticed now, so what breaks is sent once more.
            answer = send(ready, maxAnswer, start).exceptionallyCompose(
                e -> unwrap(e) instanceof IOException broken && broken instanceof ConnectException == false
                    ? send(ready, maxAnswer, start)
                    : CompletableFuture.failedFuture(e)
            );
        } catch (RuntimeException e) {
            answer = CompletableFuture.failedFuture(e);
        }
        answer.thenApply(read).whenComplete((result, error) -> {
            connections.release();
            stats.called(System.nanoTime() - start);
            Failure failure = error == null ? null : failure(unwrap(error));
            judge(failure);
            done.accept(result, failure);
        });
    }

    private CompletableFuture<byte[]> send(HttpRequest request, int maxAnswer, long start) {
        CompletableFuture<HttpResponse<byte[]>> sent = client.sendAsync(
            request,
            // 422 and the like carry an explanation, but it may quote the query: not for the log
            info -> info.statusCode() == 200 ? new Limited(maxAnswer) : HttpResponse.BodySubscribers.replacing(new byte[0])
        );
        // HttpRequest.timeout ends with the headers; a body may hang, too. Cancelling also closes the connection.
        long left = config.timeout() - TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start);
        Scheduler.ScheduledCancellable timer = scheduler.apply(Math.max(left, 1), () -> sent.cancel(true));
        return sent.whenComplete((response, error) -> timer.cancel()).thenApply(response -> {
            if (response.statusCode() != 200) {
                throw new Failure("status_" + response.statusCode(), "answered " + response.statusCode());
            }
            return response.body();
        });
    }

    private Failure failure(Throwable error) {
        return switch (error) {
            case Failure known -> known;
            case CancellationException e -> new Failure("timeout", "no answer in " + config.timeout() + " ms");
            case ConnectException e -> new Failure("refused", "cannot be reached: " + e.getMessage());
            case IOException e -> new Failure("connection", "connection broken: " + e.getMessage());
            default -> {
                logger.warn("calling " + url + " failed", error);
                yield new Failure("error", error.toString());
            }
        };
    }

    private void judge(Failure failure) {
        if (failure == null) {
            if (failures.getAndSet(0) >= config.breakerFailures()) {
                logger.info("{} works again", url);
            }
            openUntil.set(CLOSED);
        } else if (List.of("status_400", "status_413", "status_422").contains(failure.reason) == false) {
            // Those blame this one search and say that the service lives.
            int inRow = failures.incrementAndGet();
            if (inRow == 1) {
                logger.warn("{} {}; hits stay in the order of the first stage", url, failure.getMessage());
            }
            if (inRow >= config.breakerFailures()) {
                if (openUntil.getAndSet(pauseFromNow()) == CLOSED) {
                    stats.opened();
                    logger.warn("{} failed {} times in a row, last: {}; not called for a while", url, inRow, failure.getMessage());
                }
            }
        }
    }

    private static Throwable unwrap(Throwable error) {
        return error instanceof CompletionException && error.getCause() != null ? error.getCause() : error;
    }

    static HttpClient client(java.util.concurrent.Executor executor) {
        return HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1) // no upgrade of clear-text connections, which many servers warn about
            .connectTimeout(Duration.ofSeconds(10))
            .executor(executor)
            .build();
    }

    /** The body as bytes, given up when it grows too large (BodyHandlers.limiting is in Java 25 only). */
    private static final class Limited implements HttpResponse.BodySubscriber<byte[]> {
        private final int max;
        private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        private final CompletableFuture<byte[]> body = new CompletableFuture<>();
        private Flow.Subscription subscription;

        Limited(int max) {
            this.max = max;
        }

        @Override
        public void onSubscribe(Flow.Subscription subscription) {
            this.subscription = subscription;
            subscription.request(Long.MAX_VALUE);
        }

        @Override
        public void onNext(List<ByteBuffer> buffers) {
            for (ByteBuffer buffer : buffers) {
                if (body.isDone() || buffer.remaining() > max - bytes.size()) {
                    subscription.cancel();
                    body.completeExceptionally(new Failure("too_large", "answered more than " + max + " bytes"));
                    return;
                }
                byte[] part = new byte[buffer.remaining()];
                buffer.get(part);
                bytes.writeBytes(part);
            }
        }

        @Override
        public void onError(Throwable error) {
            body.completeExceptionally(error);
        }

        @Override
        public void onComplete() {
            body.complete(bytes.toByteArray());
        }

        @Override
        public CompletionStage<byte[]> getBody() {
            return body;
        }
    }
}
