package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.net.URI;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.opensearch.common.settings.Settings;
import org.opensearch.core.action.ActionListener;
import org.opensearch.threadpool.Scheduler;
import rerank.opensearch.ScoringClient.Failure;

class ScoringClientTest {
    private final ScheduledExecutorService timers = Executors.newSingleThreadScheduledExecutor();
    private final ExecutorService pool = Executors.newFixedThreadPool(12, task -> new Thread(task, "our-pool"));
    private final List<HttpServer> servers = new ArrayList<>();
    private final Set<InetSocketAddress> clients = ConcurrentHashMap.newKeySet();
    private final List<ServerSocket> listening = new ArrayList<>();
    private final AtomicInteger accepted = new AtomicInteger();
    private final CompletableFuture<Void> called = new CompletableFuture<>();
    private final CompletableFuture<Integer> closed = new CompletableFuture<>();
    private RerankPlugin plugin;
    private int timeout; // of the last service
    private int turn;
    private byte[] body = {1};

    private ScoringClient.Request request(int most, boolean longQuery) {
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
    private URI server(int status, int after) throws IOException {
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

    private ScoringClient service(Map<String, Object> more, URI url) {
        return service(more, url, (millis, task) -> timers.schedule(task, millis, TimeUnit.MILLISECONDS));
    }

    private ScoringClient service(Map<String, Object> more, URI url, BiFunction<Long, Runnable, Future<?>> schedule) {
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
    private String[] call(ScoringClient service, boolean longQuery, Function<byte[], String> read) throws Exception {
        return call(service, 1_000, longQuery, read);
    }

    private String[] call(ScoringClient service, int most, boolean longQuery, Function<byte[], String> read) throws Exception {
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

    private String call(ScoringClient service) throws Exception {
        return call(service, false, bytes -> "fine")[0];
    }

    @Test
    void answersAreReadOnThePool() throws Exception {
        Set<String> threads = ConcurrentHashMap.newKeySet();
        String[] found = call(service(Map.of(), server(200, 0)), false, bytes -> {
            threads.add(Thread.currentThread().getName());
            return new String(bytes);
        });
        assertArrayEquals(new String[] {"{}", "our-pool"}, found);
        assertEquals(Set.of("our-pool"), threads);
    }

    @Test
    void callsReuseAConnection() throws Exception {
        ScoringClient service = service(Map.of(), server(200, 0));
        for (int i = 0; i < 5; i++) {
            assertEquals("fine", call(service));
        }
        assertEquals(1, clients.size());
    }

    @Test
    void aLateTimeoutDoesNotCloseAConnectionThatCanBeUsedAgain() throws Exception {
        plugin.pool = Runnable::run;
        List<Runnable> timeouts = new ArrayList<>();
        ScoringClient service = service(Map.of(), server(200, 0), (millis, task) -> {
            timeouts.add(task);
            return CompletableFuture.completedFuture(null);
        });
        assertEquals("fine", call(service));
        timeouts.get(0).run();
        assertEquals("fine", call(service));
        assertEquals(1, clients.size());
    }

    @Test
    void simultaneousCallsReuseTheirConnections() throws Exception {
        CyclicBarrier together = new CyclicBarrier(12); // no call ends before all have begun
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/", exchange -> {
            clients.add(exchange.getRemoteAddress());
            exchange.getRequestBody().readAllBytes();
            try {
                together.await(60, TimeUnit.SECONDS);
            } catch (Exception e) {
                throw new IOException(e);
            }
            exchange.sendResponseHeaders(200, 2);
            exchange.getResponseBody().write("{}".getBytes());
            exchange.close();
        });
        server.start();
        servers.add(server);
        URI url = URI.create("http://127.0.0.1:" + server.getAddress().getPort());
        ScoringClient service = service(Map.of(), url);
        for (int round = 0; round < 3; round++) {
            List<CompletableFuture<String>> calls = new ArrayList<>();
            for (int i = 0; i < 12; i++) {
                CompletableFuture<String> done = new CompletableFuture<>();
                service.call(request(1_000, false), bytes -> "fine", ActionListener.wrap(done::complete, done::completeExceptionally));
                calls.add(done);
            }
            for (CompletableFuture<String> done : calls) {
                assertEquals("fine", done.get(60, TimeUnit.SECONDS));
            }
        }
        assertEquals(12, clients.size());
    }

    @Test
    void failuresComeOnThePool() throws Exception {
        assertArrayEquals(new String[] {"status_500", "our-pool"}, call(service(Map.of(), server(500, 0)), false, bytes -> "fine"));
        assertArrayEquals(new String[] {"timeout", "our-pool"},
            call(service(Map.of("timeout", 50), server(200, 1_000)), false, bytes -> "fine"));
    }

    @Test
    void aSearchAndItsConnectionEndAtTheTimeoutAlthoughBytesCome() throws Exception {
        CompletableFuture<Void> begun = new CompletableFuture<>(), ended = new CompletableFuture<>(), closed = new CompletableFuture<>();
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/", exchange -> {
            exchange.sendResponseHeaders(200, Integer.MAX_VALUE);
            try (exchange) {
                exchange.getResponseBody().write(0);
                exchange.getResponseBody().flush();
                begun.complete(null);
                ended.join();
                while (true) {
                    exchange.getResponseBody().write(0);
                    exchange.getResponseBody().flush();
                }
            } catch (IOException e) { // the client has closed the connection
                closed.complete(null);
            }
        });
        server.start();
        servers.add(server);
        URI url = URI.create("http://127.0.0.1:" + server.getAddress().getPort());
        CompletableFuture<Runnable> timeout = new CompletableFuture<>();
        ScoringClient service = service(Map.of("timeout", 60_000), url, (millis, task) -> {
            timeout.complete(task);
            return timers.schedule(() -> { }, 0, TimeUnit.MILLISECONDS);
        });
        CompletableFuture<String> result = new CompletableFuture<>();
        service.call(request(Integer.MAX_VALUE, false), bytes -> "fine",
            ActionListener.wrap(result::complete, e -> result.complete(((Failure) e).reason)));
        begun.get(60, TimeUnit.SECONDS);
        timeout.get(60, TimeUnit.SECONDS).run();
        assertEquals("timeout", result.get(30, TimeUnit.SECONDS), "the service sends nothing more");
        ended.complete(null);
        closed.get(60, TimeUnit.SECONDS);
    }

    private static final String ANSWER = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

    /** A server of sockets, which is closed after the test. */
    private ServerSocket listening() throws IOException {
        ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        listening.add(server);
        return server;
    }

    private URI url(ServerSocket server) {
        return URI.create("http://127.0.0.1:" + server.getLocalPort());
    }

    /** Answer one call of each connection, then close it without notice. Returns the URL; {@code accepted} counts connections. */
    private URI closing(Function<Integer, String> answers) throws IOException {
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

    @Test
    void aConnectionThatTheServiceHasClosedIsReplaced() throws Exception {
        ScoringClient service = service(Map.of(), closing(connection -> ANSWER));
        for (int i = 0; i < 5; i++) {
            assertEquals("fine", call(service));
        }
        assertEquals(5, accepted.get());
    }

    @Test
    void aCallWithoutAnAnswerIsSentTwiceAtMost() throws Exception {
        assertEquals("fine", call(service(Map.of(), closing(connection -> connection == 1 ? "" : ANSWER))));
        assertEquals(2, accepted.getAndSet(0));
        assertEquals("connection", call(service(Map.of(), closing(connection -> ""))));
        assertEquals(2, accepted.getAndSet(0));
        String part = ANSWER.substring(0, ANSWER.length() - 1);
        assertEquals("connection", call(service(Map.of(), closing(connection -> part))));
        assertEquals(1, accepted.get(), "a part of an answer has come");
    }

    /** A server that begins an answer and does not end it; {@code closed} is complete when the client has closed the connection. */
    private URI hanging(String begin) throws IOException {
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

    @Test
    void anAnswerThatStopsEndsAtTheTimeout() throws Exception {
        assertEquals("timeout", call(service(Map.of("timeout", 100), hanging(ANSWER.substring(0, ANSWER.length() - 1)))));
        assertEquals(-1, closed.get(60, TimeUnit.SECONDS));
    }

    @Test
    void theEndOfASearchEndsItsCallAndItsConnection() throws Exception {
        ScoringClient service = service(Map.of(), hanging(""));
        CompletableFuture<String> result = new CompletableFuture<>();
        Runnable end = service.call(request(1_000, false), bytes -> "fine",
            ActionListener.wrap(result::complete, e -> result.complete(((Failure) e).reason)));
        called.get(60, TimeUnit.SECONDS);
        end.run();
        assertEquals("cancelled", result.get(30, TimeUnit.SECONDS));
        assertEquals(-1, closed.get(30, TimeUnit.SECONDS));
    }

    @Test
    void aLongAnswerIsAFailure() throws Exception {
        assertEquals("too_large", call(service(Map.of(), server(200, 0)), 1, false, bytes -> "fine")[0]);
    }

    @Test
    void anErrorEndsTheCallAndFreesItsConnection() throws Exception {
        ScoringClient service = service(Map.of("max_connections", 1, "breaker_failures", 100), server(200, 0));
        for (int i = 0; i < 3; i++) {
            assertEquals("error", call(service, false, bytes -> {
                throw new StackOverflowError();
            })[0]);
        }
        assertEquals("fine", call(service));
    }

    @Test
    void anErrorInTheListenerEndsTheSearch() {
        List<String> ends = new ArrayList<>();
        ActionListener<String> search = ActionListener.wrap(answer -> ends.add(answer), e -> ends.add(e.getCause().toString()));
        ActionListener<String> listener = Reranking.ending(search, answer -> {
            throw new StackOverflowError();
        }, e -> search.onResponse("first stage"));
        listener.onResponse("answer");
        Reranking.ending(search, answer -> { }, e -> {
            throw new StackOverflowError();
        }).onFailure(new IOException());
        assertEquals(List.of("first stage", "java.lang.StackOverflowError"), ends);
    }

    @Test
    void aFaultOfOneSearchDoesNotOpenTheBreaker() throws Exception {
        for (int status : List.of(400, 413, 422, 500)) {
            ScoringClient service = service(Map.of(), server(status, 0));
            for (int i = 0; i < 5; i++) {
                assertEquals("status_" + status, call(service));
            }
            assertNull(service.unreachable());
        }
        ScoringClient service = service(Map.of(), server(502, 0));
        for (int i = 0; i < 5; i++) {
            assertEquals("status_502", call(service, true, bytes -> "fine")[0], "a failure of a long query is not counted");
        }
        assertNull(service.unreachable());
    }

    @Test
    void aServiceThatAlwaysFailsIsNotCalled() throws Exception {
        for (int status : List.of(502, 503)) {
            ScoringClient service = service(Map.of(), server(status, 0));
            assertEquals("status_" + status, call(service));
            assertNull(service.unreachable());
            assertEquals("status_" + status, call(service));
            assertEquals("breaker_open", service.unreachable());
            assertEquals("breaker_open", call(service));
        }
    }

    private ScoringClient services(Map<String, Object> more, URI... urls) {
        Map<String, Object> config = new HashMap<>(more);
        config.put("url", Arrays.stream(urls).map(URI::toString).toList());
        return service(config, urls[0]);
    }

    /** The URL of a server that has stopped. */
    private URI dead() throws IOException {
        ServerSocket server = listening();
        server.close();
        return url(server);
    }

    @Test
    void servicesTakeTurns() throws Exception {
        ScoringClient service = services(Map.of(), closing(connection -> ANSWER), server(200, 0), server(200, 0));
        List<Integer> turns = new ArrayList<>();
        for (int i = 0; i < 6; i++) {
            turns.add(service.nextTurn());
        }
        assertEquals(List.of(0, 1, 2, 0, 1, 2), turns);
        for (int first : turns) {
            turn = first;
            assertEquals("fine", call(service));
        }
        assertEquals(2, accepted.get());
        assertEquals(2, clients.size(), "one connection to each of the others");
    }

    @Test
    void anotherServiceAnswersForOneThatFails() throws Exception {
        for (URI failing : List.of(dead(), closing(connection -> ""), server(502, 0), server(503, 0))) {
            ScoringClient service = services(Map.of(), failing, server(200, 0));
            for (int i = 0; i < 5; i++) {
                assertEquals("fine", call(service));
            }
            assertNull(service.unreachable());
        }
    }

    @Test
    void aServiceThatFailsIsSkippedForAWhile() throws Exception {
        ScoringClient service = services(Map.of("breaker_failures", 3), closing(connection -> "no HTTP"), server(200, 0));
        for (int i = 0; i < 6; i++) {
            assertEquals("fine", call(service));
        }
        assertEquals(3, accepted.get());
    }

    @Test
    void aServiceThatHangsLeavesTimeForAnother() throws Exception {
        ScoringClient service = services(Map.of("timeout", 10_000), server(200, 60_000), server(200, 0));
        assertEquals("fine", call(service));
    }

    @Test
    void aServiceThatAnswersSlowlyLeavesTimeForAnother() throws Exception {
        ServerSocket slow = listening();
        pool.execute(() -> {
            try (Socket client = slow.accept()) {
                for (byte next : ANSWER.getBytes()) { // each read ends in time, the answer does not
                    client.getOutputStream().write(next);
                    Thread.sleep(1_000);
                }
            } catch (IOException | InterruptedException e) { // the client has closed the connection
            }
        });
        ScoringClient service = services(Map.of("timeout", 4_000), url(slow), server(200, 0));
        assertEquals("fine", call(service));
    }

    @Test
    void aServiceThatReadsNothingLeavesTimeForAnother() throws Exception {
        ScoringClient service = services(Map.of("timeout", 6_000), url(listening()), server(200, 0));
        body = new byte[16 << 20]; // more than the buffers of the connection
        assertEquals("fine", call(service));
    }

    @Test
    void aServiceIsNotAskedInTooShortATime() throws Exception {
        List<ServerSocket> hanging = new ArrayList<>();
        for (int i = 0; i < 6; i++) {
            hanging.add(listening());
        }
        ScoringClient service = services(Map.of("timeout", 1_000), hanging.stream().map(this::url).toArray(URI[]::new));
        assertEquals("timeout", call(service));
        for (ServerSocket server : hanging.subList(4, 6)) {
            server.setSoTimeout(1);
            assertThrows(SocketTimeoutException.class, server::accept, "a half, a quarter, and two eighths of the time are over");
        }
    }

    @Test
    void noFurtherServiceIsAskedAfterTheEndOfTheSearch() throws Exception {
        ScoringClient service = services(Map.of(), hanging(""), server(200, 0));
        CompletableFuture<String> result = new CompletableFuture<>();
        Runnable end = service.call(request(1_000, false), bytes -> "fine",
            ActionListener.wrap(result::complete, e -> result.complete(((Failure) e).reason)));
        called.get(60, TimeUnit.SECONDS);
        end.run();
        assertEquals("cancelled", result.get(30, TimeUnit.SECONDS));
        assertEquals(-1, closed.get(30, TimeUnit.SECONDS));
        pool.shutdown();
        assertTrue(pool.awaitTermination(60, TimeUnit.SECONDS));
        assertEquals(Set.of(), clients);
    }

    @Test
    void theFirstServiceHasHalfOfTheTimeIfAnotherCanBeAsked() throws Exception {
        assertEquals(99, service(Map.of(), server(200, 0)).firstLimit(99));
        ScoringClient service = services(Map.of("breaker_failures", 1), dead(), server(200, 0));
        assertEquals(49, service.firstLimit(99));
        assertEquals(1, service.firstLimit(1));
        assertEquals("fine", call(service));
        assertEquals(99, service.firstLimit(99), "the circuit breaker of the first service is open");
    }

    @Test
    void aFaultOfTheSearchIsNotSentToAnotherService() throws Exception {
        for (int status : List.of(400, 401, 403, 404, 413, 422, 500)) {
            assertEquals("status_" + status, call(services(Map.of(), server(status, 0), server(200, 0))));
        }
    }

    @Test
    void aCallFailsIfAllServicesFail() throws Exception {
        ScoringClient service = services(Map.of(), dead(), dead());
        assertEquals("refused", call(service));
        assertEquals("refused", call(service));
        assertEquals("breaker_open", service.unreachable());
        assertEquals("breaker_open", call(service));
        assertEquals(2, plugin.stats.breakerOpened.sum());
    }

    @Test
    void aUrlThatIsNotAllowedIsNotCalled() {
        Config config = ConfigTest.read(Map.of());
        assertEquals("not_allowed", new ScoringClient(config, false, plugin, null).unreachable());
    }
}
