package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.TrustManagerFactory;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import rerank.opensearch.ScoringClient.Failure;

class HttpConnectionTest {
    private static final int TIMEOUT = 60_000;
    private final ExecutorService pool = Executors.newCachedThreadPool();
    private final List<String> calls = new ArrayList<>();

    @AfterEach
    void stop() {
        pool.shutdownNow();
    }

    /** A server of one connection that sends these answers, one after each call, and closes the connection. */
    private URI server(String... answers) throws IOException {
        ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        serve(server, answers);
        return URI.create("http://127.0.0.1:" + server.getLocalPort() + "/base/v1/hook");
    }

    private void serve(ServerSocket server, String... answers) {
        pool.execute(() -> {
            try (server; Socket client = server.accept()) {
                for (String answer : answers) {
                    calls.add(call(client.getInputStream()));
                    client.getOutputStream().write(answer.getBytes(StandardCharsets.ISO_8859_1));
                }
            } catch (IOException e) { // the client has closed the connection
            }
        });
    }

    /** The text of a call with a body of one byte. */
    private static String call(InputStream in) throws IOException {
        ByteArrayOutputStream call = new ByteArrayOutputStream();
        while (call.toString(StandardCharsets.ISO_8859_1).matches("(?s).*\r\n\r\n.") == false) {
            call.write(in.read());
        }
        return call.toString(StandardCharsets.ISO_8859_1);
    }

    private static HttpConnection.Answer post(HttpConnection connection, URI url, int most) throws IOException {
        return connection.post(url, "Content-Type: text/plain\r\n", new byte[] {'x'}, TIMEOUT, most);
    }

    /** The body of the only answer, after its status if it is not 200. */
    private String answer(String answer, int most) throws IOException {
        URI url = server(answer);
        try (HttpConnection connection = new HttpConnection()) {
            connection.open(url, TIMEOUT);
            HttpConnection.Answer read = post(connection, url, most);
            String body = new String(read.body(), StandardCharsets.ISO_8859_1);
            return read.status() == 200 ? body : read.status() + " " + body;
        }
    }

    @Test
    void aCallIsOnePost() throws IOException {
        assertEquals("{}", answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 10));
        String port = calls.get(0).replaceFirst("(?s).*127.0.0.1:(\\d+).*", "$1");
        assertEquals("POST /base/v1/hook HTTP/1.1\r\nHost: 127.0.0.1:" + port + "\r\nUser-Agent: opensearch-rerank\r\n"
            + "Content-Type: text/plain\r\nContent-Length: 1\r\n\r\nx", calls.get(0));
    }

    @Test
    void theHostIsNamedAsInTheUrl() throws IOException {
        assertTrue(callTo("http://127.0.0.1/v1/hook").contains("\r\nHost: 127.0.0.1\r\n"), "the default port is left out");
        assertTrue(callTo("http://[::1]:80/v1/hook").contains("\r\nHost: [::1]:80\r\n"));
    }

    /** The text of a call to a URL, sent to a server on another port. */
    private String callTo(String url) throws IOException {
        calls.clear();
        URI server = server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        try (HttpConnection connection = new HttpConnection()) {
            connection.open(server, TIMEOUT);
            post(connection, URI.create(url), 0);
        }
        return calls.get(0);
    }

    @Test
    void aHostMayBeAnAddressOfIpv6() throws IOException {
        ServerSocket server;
        try {
            server = new ServerSocket(0, 50, InetAddress.getByName("::1"));
        } catch (IOException e) {
            Assumptions.abort("this machine has no IPv6");
            return;
        }
        serve(server, "HTTP/1.1 204 No Content\r\n\r\n");
        URI url = URI.create("http://[::1]:" + server.getLocalPort() + "/v1/hook");
        try (HttpConnection connection = new HttpConnection()) {
            connection.open(url, TIMEOUT);
            assertEquals(204, post(connection, url, 0).status());
        }
    }

    @Test
    void allFormsOfAnAnswerAreRead() throws IOException {
        assertEquals("abcde", answer("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX: y\r\n\r\n", 5));
        assertEquals("abc", answer("HTTP/1.1 200\r\n\r\nabc", 5), "until the end of the connection");
        assertEquals("abc", answer("HTTP/1.0 200 OK\r\nCONTENT-LENGTH:3\r\n\r\nabc", 5));
        assertEquals("abc", answer("HTTP/1.1 200 OK\nContent-Length: 3\n\nabc", 5), "ends of lines without CR");
        assertEquals("abc", answer("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", 5));
        assertEquals("204 ", answer("HTTP/1.1 204 No Content\r\n\r\n", 5));
        assertEquals("302 moved", answer("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 5\r\n\r\nmoved", 5));
        String long_ = "x".repeat(100_000);
        assertEquals(long_, answer("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + long_, 100_000));
        assertEquals(long_, answer("HTTP/1.1 200 OK\r\n\r\n" + long_, 100_000));
    }

    @Test
    void otherAnswersAreFailures() {
        for (String answer : List.of("nonsense\r\n\r\n", "HTTP/2 200\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1e3\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n",
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 2\r\n\r\nabc",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", "HTTP/1.1 200 OK\r\nX: " + "x".repeat(100_000))) {
            assertThrows(IOException.class, () -> answer(answer, 100), answer);
        }
        for (String answer : List.of("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd", "HTTP/1.1 200 OK\r\n\r\nabcd",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n7fffffffffffffff\r\ncd")) {
            assertEquals("too_large", assertThrows(Failure.class, () -> answer(answer, 3), answer).reason);
        }
    }

    @Test
    void aConnectionIsUsedAgainIfTheServiceKeepsIt() throws IOException {
        String body = "Content-Length: 2\r\n\r\n{}";
        assertTrue(isReusableAfter("HTTP/1.1 200 OK\r\n" + body));
        assertTrue(isReusableAfter("HTTP/1.1 503 Busy\r\n" + body));
        assertTrue(isReusableAfter("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"));
        assertTrue(isReusableAfter("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\nZ: z\r\n\r\n"));
        assertTrue(isReusableAfter("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + body), "the same length twice");
        assertTrue(isReusableAfter("HTTP/1.1 204 No Content\r\n\r\n"));
        assertTrue(isReusableAfter("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n" + body));
        assertFalse(isReusableAfter("HTTP/1.0 200 OK\r\n" + body));
        assertFalse(isReusableAfter("HTTP/1.1 200 OK\r\nConnection: close\r\n" + body));
        assertFalse(isReusableAfter("HTTP/1.1 200 OK\r\n" + body + "more"), "the next answer would begin with it");
        assertFalse(isReusableAfter("HTTP/1.1 200 OK\r\n\r\n{}"), "the end of the answer is the end of the connection");
    }

    private boolean isReusableAfter(String answer) throws IOException {
        URI url = server(answer);
        try (HttpConnection connection = new HttpConnection()) {
            connection.open(url, TIMEOUT);
            post(connection, url, 100);
            return connection.isReusable();
        }
    }

    @Test
    void onlyAConnectionThatEndsBeforeItsAnswerCountsAsClosed() throws IOException {
        for (String second : List.of("", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")) {
            URI url = server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", second);
            try (HttpConnection connection = new HttpConnection()) {
                connection.open(url, TIMEOUT);
                post(connection, url, 3);
                IOException failure = assertThrows(IOException.class, () -> post(connection, url, 3));
                assertEquals(second.isEmpty(), failure instanceof HttpConnection.ClosedException);
            }
        }
    }

    /** An open connection after one answer. */
    private HttpConnection used(String... answers) throws IOException {
        URI url = server(answers);
        HttpConnection connection = new HttpConnection();
        connection.open(url, TIMEOUT);
        post(connection, url, 100);
        return connection;
    }

    @Test
    void thePoolKeepsUsableConnectionsForSomeTime() throws IOException {
        String answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        List<Runnable> sweeps = new ArrayList<>();
        ConnectionPool pool = new ConnectionPool(TIMEOUT, (millis, sweep) -> {
            sweeps.add(sweep);
            return null;
        });
        assertNull(pool.take());
        HttpConnection first = used(answer, ""), last = used(answer, "");
        pool.give(first);
        pool.give(last);
        pool.give(used("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"));
        sweeps.removeFirst().run();
        assertEquals(1, sweeps.size(), "one sweep is planned while connections are idle");
        assertSame(last, pool.take(), "the last used");
        last.close();
        pool.give(last);
        assertSame(first, pool.take(), "a closed connection is not kept");
        assertNull(pool.take());
        sweeps.removeFirst().run();
        assertEquals(List.of(), sweeps, "nothing is idle");
        first.close();
    }

    @Test
    void thePoolClosesConnectionsThatAreIdleForTooLong() throws IOException {
        String answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        List<Runnable> sweeps = new ArrayList<>();
        ConnectionPool pool = new ConnectionPool(0, (millis, sweep) -> {
            sweeps.add(sweep);
            return null;
        });
        HttpConnection swept = used(answer, ""), taken = used(answer, "");
        pool.give(swept);
        sweeps.removeFirst().run();
        assertFalse(swept.isReusable());
        pool.give(taken);
        assertNull(pool.take());
        assertFalse(taken.isReusable());
    }

    @Test
    void aReadThatWaitsEndsAtItsTimeoutOrWhenTheConnectionIsClosed() throws Exception {
        try (ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            URI url = URI.create("http://127.0.0.1:" + server.getLocalPort() + "/");
            HttpConnection connection = new HttpConnection();
            connection.open(url, TIMEOUT);
            try (Socket service = server.accept()) {
                assertThrows(SocketTimeoutException.class, () -> connection.post(url, "", new byte[] {'x'}, 20, 3));
                call(service.getInputStream());
                service.getOutputStream().write("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab".getBytes());
                assertThrows(SocketTimeoutException.class, () -> connection.post(url, "", new byte[] {'x'}, 20, 3), "in the body");
                call(service.getInputStream());
                CompletableFuture<Void> call = CompletableFuture.runAsync(
                    () -> assertThrows(IOException.class, () -> post(connection, url, 3)), pool);
                call(service.getInputStream());
                connection.close();
                call.get(60, TimeUnit.SECONDS);
            }
        }
    }

    @Test
    void aCertificateMustBeTrustedAndNameTheHost(@TempDir Path folder) throws Exception {
        SSLContext ours = certificate(folder, "localhost");
        HttpsServer server = HttpsServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.setHttpsConfigurator(new HttpsConfigurator(ours));
        server.createContext("/", exchange -> {
            exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(200, 2);
            exchange.getResponseBody().write("{}".getBytes());
            exchange.close();
        });
        server.start();
        SSLContext before = SSLContext.getDefault();
        int port = server.getAddress().getPort();
        URI named = URI.create("https://localhost:" + port + "/"), other = URI.create("https://127.0.0.1:" + port + "/");
        try (HttpConnection first = new HttpConnection(); HttpConnection second = new HttpConnection();
                HttpConnection third = new HttpConnection()) {
            assertThrows(SSLException.class, () -> first.open(named, TIMEOUT), "not trusted");
            SSLContext.setDefault(ours);
            assertThrows(SSLException.class, () -> second.open(other, TIMEOUT), "another host");
            third.open(named, TIMEOUT);
            for (int i = 0; i < 3; i++) {
                assertEquals("{}", new String(post(third, named, 2).body()));
                assertTrue(third.isReusable() && third.isQuiet());
            }
        } finally {
            SSLContext.setDefault(before);
            server.stop(0);
        }
    }

    @Test
    void aTlsConnectionWithBytesAfterTheAnswerIsNotQuiet(@TempDir Path folder) throws Exception {
        SSLContext ours = certificate(folder, "localhost");
        String head = "HTTP/1.1 200 OK\r\nContent-Length: ";
        int size = HttpConnection.BUFFER - head.length() - "8000\r\n\r\n".length(); // the answer fills one read
        String answer = head + size + "\r\n\r\n" + "x".repeat(size);
        SSLContext before = SSLContext.getDefault();
        SSLContext.setDefault(ours);
        try {
            for (String more : List.of("", "more")) {
                ServerSocket server = ours.getServerSocketFactory().createServerSocket(0, 50, InetAddress.getLoopbackAddress());
                serve(server, answer + more, "");
                URI url = URI.create("https://localhost:" + server.getLocalPort() + "/");
                try (HttpConnection connection = new HttpConnection()) {
                    connection.open(url, TIMEOUT);
                    assertEquals(size, post(connection, url, size).body().length);
                    assertTrue(connection.isReusable());
                    assertEquals(more.isEmpty(), connection.isQuiet());
                }
            }
            ServerSocket server = ours.getServerSocketFactory().createServerSocket(0, 50, InetAddress.getLoopbackAddress());
            serve(server, answer); // then it closes the connection
            URI url = URI.create("https://localhost:" + server.getLocalPort() + "/");
            try (HttpConnection connection = new HttpConnection()) {
                connection.open(url, TIMEOUT);
                post(connection, url, size);
                assertTimeoutPreemptively(Duration.ofSeconds(60), () -> {
                    while (connection.isQuiet()) {
                        Thread.sleep(1);
                    }
                });
            }
        } finally {
            SSLContext.setDefault(before);
        }
    }

    /** A context with a new certificate of a host, which it trusts. */
    private static SSLContext certificate(Path folder, String host) throws Exception {
        String secret = "changeit", file = folder.resolve("store.p12").toString();
        Process tool = new ProcessBuilder(Path.of(System.getProperty("java.home"), "bin", "keytool").toString(), "-genkeypair", "-alias", "a",
            "-keyalg", "EC", "-dname", "CN=" + host, "-ext", "san=dns:" + host, "-storetype", "PKCS12", "-keystore", file,
            "-storepass", secret).redirectErrorStream(true).start();
        String said = new String(tool.getInputStream().readAllBytes());
        assertEquals(0, tool.waitFor(), said);
        KeyStore store = KeyStore.getInstance("PKCS12");
        try (InputStream stream = Files.newInputStream(Path.of(file))) {
            store.load(stream, secret.toCharArray());
        }
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(store, secret.toCharArray());
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        return context;
    }
}
