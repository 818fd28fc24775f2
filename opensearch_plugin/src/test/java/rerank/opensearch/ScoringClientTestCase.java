package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.opensearch.common.settings.Settings;
import org.opensearch.core.action.ActionListener;
import org.opensearch.threadpool.Scheduler;
import rerank.opensearch.ScoringClient.Failure;

/** Servers that fail in different ways, and calls to them. */
abstract class ScoringClientTestCase {
    final ScheduledExecutorService timers = Executors.newSingleThreadScheduledExecutor();
    final ExecutorService pool = Executors.newFixedThreadPool(12, task -> new Thread(task, "our-pool"));
    final List<HttpServer> servers = new ArrayList<>();
    final Set<InetSocketAddress> clients = ConcurrentHashMap.newKeySet();
    final List<ServerSocket> listening = new ArrayList<>();
    final AtomicInteger accepted = new AtomicInteger();
    final CompletableFuture<Void> called = new CompletableFuture<>();
    final CompletableFuture<Integer> closed = new CompletableFuture<>();
    RerankPlugin plugin;
    int timeout; // of the last service
    int turn;
    byte[] body = {1};

    ScoringClient.Request request(int most, boolean longQuery) {
        return new ScoringClient.Request(Protocol.PATH, body, turn, timeout, most, longQuery);
    }

    @BeforeEach
    void makePlugin() {
        plugin = new RerankPlugin(Settings.EMPTY);
        plugin.pool = pool;
    }

    @AfterEach
    void stop() throws IOException {
        for (ServerSocket server : listening) {
            server.close();
        }
        servers.forEach(server -> server.stop(0));
        pool.shutdownNow();
        timers.shutdownNow();
    }

    /** A server that answers with this status, after this many milliseconds. */
    URI server(int status, int after) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.setExecutor(Executors.newCachedThreadPool());
        int port = server.getAddress().getPort();
        server.createContext("/", exchange -> {
            clients.add(exchange.getRemoteAddress());
            exchange.getRequestBody().readAllBytes();
            try {
                Thread.sleep(after);
                exchange.sendResponseHeaders(status, 2);
                exchange.getResponseBody().write("{}".getBytes());
            } catch (InterruptedException | IOException e) { // the test is over
            }
            exchange.close();
        });
        server.start();
        servers.add(server);
        return URI.create("http://127.0.0.1:" + port);
    }

    ScoringClient service(Map<String, Object> more, URI url) {
        return service(more, url, (millis, task) -> timers.schedule(task, millis, TimeUnit.MILLISECONDS));
    }

    ScoringClient service(Map<String, Object> more, URI url, BiFunction<Long, Runnable, Future<?>> schedule) {
        Map<String, Object> config = new HashMap<>(Map.of("url", url.toString(),
            "timeout", 60_000, "breaker_failures", 2, "breaker_pause", 60_000));
        config.putAll(more);
        Config read = ConfigTest.read(config);
        timeout = read.timeout();
        return new ScoringClient(read, true, plugin, (millis, task) -> {
            Future<?> timer = schedule.apply(millis, task);
            return new Scheduler.ScheduledCancellable() {
                @Override
                public long getDelay(TimeUnit unit) {
                    return 0;
                }

                @Override
                public int compareTo(Delayed other) {
                    return 0;
                }

                @Override
                public boolean cancel() {
                    return timer.cancel(false);
                }

                @Override
                public boolean isCancelled() {
                    return timer.isCancelled();
                }
            };
        });
    }

    /** The result of a call: the answer or the reason of the failure, and its thread. */
    String[] call(ScoringClient service, boolean longQuery, Function<byte[], String> read) throws Exception {
        return call(service, 1_000, longQuery, read);
    }

    String[] call(ScoringClient service, int most, boolean longQuery, Function<byte[], String> read) throws Exception {
        CompletableFuture<String[]> done = new CompletableFuture<>();
        service.call(request(most, longQuery), read, new ActionListener<>() {
            @Override
            public void onResponse(String answer) {
                done.complete(new String[] {answer, Thread.currentThread().getName()});
            }

            @Override
            public void onFailure(Exception e) {
                done.complete(new String[] {((Failure) e).reason, Thread.currentThread().getName()});
            }
        });
        return done.get(60, TimeUnit.SECONDS);
    }

    String call(ScoringClient service) throws Exception {
        return call(service, false, bytes -> "fine")[0];
    }

    static final String ANSWER = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

    /** A server of sockets, which is closed after the test. */
    ServerSocket listening() throws IOException {
        ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        listening.add(server);
        return server;
    }

    URI url(ServerSocket server) {
        return URI.create("http://127.0.0.1:" + server.getLocalPort());
    }

    /** Answer one call of each connection, then close it without notice. Returns the URL; {@code accepted} counts connections. */
    URI closing(Function<Integer, String> answers) throws IOException {
        ServerSocket server = listening();
        pool.execute(() -> {
            try {
                while (true) {
                    try (Socket client = server.accept()) {
                        client.getInputStream().read(new byte[1 << 16]);
                        client.getOutputStream().write(answers.apply(accepted.incrementAndGet()).getBytes());
                    }
                }
            } catch (IOException e) { // the test is over
            }
        });
        return url(server);
    }

    /** A server that begins an answer and does not end it; {@code closed} is complete when the client has closed the connection. */
    URI hanging(String begin) throws IOException {
        ServerSocket server = listening();
        pool.execute(() -> {
            try (Socket client = server.accept()) {
                client.getInputStream().read(new byte[1 << 16]);
                client.getOutputStream().write(begin.getBytes());
                called.complete(null);
                closed.complete(client.getInputStream().read());
            } catch (IOException e) {
                closed.complete(-1);
            }
        });
        return url(server);
    }

    /** End a search while its call waits for a server of {@link #hanging}. Its connection is closed. */
    void endCall(ScoringClient service) throws Exception {
        CompletableFuture<String> result = new CompletableFuture<>();
        Runnable end = service.call(request(1_000, false), bytes -> "fine",
            ActionListener.wrap(result::complete, e -> result.complete(((Failure) e).reason)));
        called.get(60, TimeUnit.SECONDS);
        end.run();
        assertEquals("cancelled", result.get(30, TimeUnit.SECONDS));
        assertEquals(-1, closed.get(30, TimeUnit.SECONDS));
    }

    ScoringClient services(Map<String, Object> more, URI... urls) {
        Map<String, Object> config = new HashMap<>(more);
        config.put("url", Arrays.stream(urls).map(URI::toString).toList());
        return service(config, urls[0]);
    }

    /** The URL of a server that has stopped. */
    URI dead() throws IOException {
        ServerSocket server = listening();
        server.close();
        return url(server);
    }
}
