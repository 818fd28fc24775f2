package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.net.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.security.KeyStore;
import java.util.*;
import java.util.concurrent.*;
import javax.net.ssl.*;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import rerank.opensearch.ScoringClient.Failure;

class ConnectionTest {
    private final ExecutorService pool = Executors.newCachedThreadPool();
    private ServerSocket listening;
    private final BlockingQueue<String> heard = new LinkedBlockingQueue<>();
    private final Deque<Connection> made = new ArrayDeque<>();

    @BeforeEach
    void listen() throws IOException {
        listening = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    }

    @AfterEach
    void stop() throws IOException {
        made.forEach(Connection::close);
        listening.close();
        pool.shutdownNow();
    }

    /** A connection to a server that gives these answers, one for each call, and then hangs up. */
    private Connection to(String... answers) throws IOException {
        Connection connection = new Connection(url());
        made.add(connection);
        connection.open(10_000);
        Socket accepted = listening.accept();
        pool.submit(() -> {
            try (Socket socket = accepted) {
                for (String answer : answers) {
                    heard.add(call(socket.getInputStream()));
                    socket.getOutputStream().write(answer.getBytes(StandardCharsets.ISO_8859_1));
                }
            }
            return null;
        });
        return connection;
    }

    private URI url() {
        return URI.create("http://127.0.0.1:" + listening.getLocalPort() + "/v1/hook");
    }

    private static String call(InputStream in) throws IOException {
        StringBuilder call = new StringBuilder();
        while (call.indexOf("\r\n\r\n") < 0) {
            int read = in.read();
            if (read < 0) {
                throw new EOFException();
            }
            call.append((char) read);
        }
        String length = call.toString().split("Content-Length: ")[1].split("\r")[0];
        return call + new String(in.readNBytes(Integer.parseInt(length)), StandardCharsets.ISO_8859_1);
    }

    private static String post(Connection connection) throws IOException {
        return new String(connection.post("words".getBytes(), null, 20), StandardCharsets.ISO_8859_1);
    }

    @Test
    void whatIsSent() throws Exception {
        Connection connection = to("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n");
        assertEquals("{}", new String(connection.post("words".getBytes(), "secret", 20)));
        assertEquals("POST /v1/hook HTTP/1.1\r\nHost: 127.0.0.1:" + listening.getLocalPort() + "\r\nContent-Type: application/octet-stream"
            + "\r\nContent-Length: 5\r\nAuthorization: Bearer secret\r\n\r\nwords", heard.poll(10, TimeUnit.SECONDS));
        assertTrue(connection.isOpen());
        byte[] large = new byte[3_000_000];
        Arrays.fill(large, (byte) 'x');
        assertEquals(0, connection.post(large, null, 20).length);
        assertTrue(heard.poll(10, TimeUnit.SECONDS).endsWith("\r\n\r\n" + "x".repeat(3_000_000)));
        assertThrows(Failure.class, () -> connection.post(large, "a\r\nHost: b", 20));
    }

    @ParameterizedTest
    @ValueSource(strings = {
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200\r\nCONTENT-LENGTH:  5 \r\nConnection: keep-alive\r\n\r\nhello",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;a=b\r\nllo\r\n0\r\nSum: 1\r\n\r\n",
        "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 5\r\n\r\nhello",
    })
    void answersAfterWhichAConnectionIsKept(String answer) throws Exception {
        Connection connection = to(answer, answer);
        for (int i = 0; i < 2; i++) {
            assertEquals("hello", post(connection));
            assertTrue(connection.isOpen());
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
        "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\n\r\nhello",
    })
    void answersAfterWhichItIsNot(String answer) throws Exception {
        Connection connection = to(answer);
        assertEquals("hello", post(connection));
        assertFalse(connection.isOpen());
    }

    @ParameterizedTest
    @ValueSource(strings = {
        "",
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nno header\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    })
    void whatIsNoAnswer(String answer) throws Exception {
        Connection connection = to(answer);
        assertThrows(IOException.class, () -> post(connection));
        assertFalse(connection.isOpen());
    }

    @ParameterizedTest
    @ValueSource(strings = {
        "HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 9000000000\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n10\r\n",
        "HTTP/1.1 200 OK\r\n\r\nhello hello hello hello",
    })
    void whatIsTooMuch(String answer) throws Exception {
        Connection connection = to(answer);
        assertEquals("too_large", assertThrows(Failure.class, () -> post(connection)).reason);
        assertFalse(connection.isOpen());
    }

    @Test
    void headersWithoutEnd() throws Exception {
        Connection lines = to("HTTP/1.1 200 OK\r\n" + "a: b\r\n".repeat(1_000)), one = to("HTTP/1.1 200 OK\r\na: " + "b".repeat(100_000));
        assertThrows(ProtocolException.class, () -> post(lines));
        assertThrows(ProtocolException.class, () -> post(one));
    }

    @Test
    void anotherStatusKeepsTheConnection() throws Exception {
        Connection connection = to("HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", "HTTP/1.1 204 No\r\n\r\n");
        assertEquals("status_503", assertThrows(Failure.class, () -> post(connection)).reason);
        assertTrue(connection.isOpen());
        assertEquals("status_204", assertThrows(Failure.class, () -> post(connection)).reason);
    }

    @Test
    void closingEndsTheWaiting() throws Exception {
        Connection connection = new Connection(url());
        connection.open(10_000);
        Future<String> waiting = pool.submit(() -> post(connection));
        try (Socket socket = listening.accept()) {
            call(socket.getInputStream());
            connection.close();
            assertInstanceOf(IOException.class, assertThrows(ExecutionException.class, () -> waiting.get(10, TimeUnit.SECONDS)).getCause());
        }
    }

    @Test
    void onlyConnectionsThatAreStillGoodAreTaken() throws Exception {
        Connections kept = new Connections();
        assertNull(kept.take(url()));
        Connection older = to(""), newer = to("");
        kept.give(url(), older);
        kept.give(url(), newer);
        assertSame(newer, kept.take(url()));
        kept.give(url(), newer);
        newer.idleSince = older.idleSince = System.nanoTime() - Connections.PATIENCE;
        kept.tidy();
        assertNull(kept.take(url()));
        assertThrows(IOException.class, () -> post(newer));
        Connection told = new Connection(url());
        told.open(10_000);
        try (Socket socket = listening.accept()) {
            kept.give(url(), told);
            socket.getOutputStream().write("HTTP/1.1 408 Request Timeout\r\n\r\n".getBytes());
            for (long end = System.nanoTime() + 10_000_000_000L; told.isQuiet(); Thread.onSpinWait()) {
                assertTrue(System.nanoTime() < end);
            }
            assertNull(kept.take(url()));
        }
    }

    @Test
    void httpsIsSpokenWithTheHostOfTheCertificateAlone(@TempDir Path folder) throws Exception {
        Path store = folder.resolve("store.p12");
        List<String> keytool = List.of(Path.of(System.getProperty("java.home"), "bin", "keytool").toString(), "-genkeypair",
            "-alias", "one", "-keyalg", "EC", "-dname", "CN=localhost", "-ext", "san=dns:localhost", "-storetype", "PKCS12",
            "-keystore", store.toString(), "-storepass", "secret");
        assertEquals(0, new ProcessBuilder(keytool).redirectErrorStream(true)
            .redirectOutput(ProcessBuilder.Redirect.DISCARD).start().waitFor());
        KeyStore keys = KeyStore.getInstance(store.toFile(), "secret".toCharArray());
        KeyManagerFactory own = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        own.init(keys, "secret".toCharArray());
        TrustManagerFactory trusted = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        KeyStore known = KeyStore.getInstance("PKCS12");
        known.load(null);
        known.setCertificateEntry("one", keys.getCertificate("one"));
        trusted.init(known);
        SSLContext both = SSLContext.getInstance("TLS"), before = SSLContext.getDefault();
        both.init(own.getKeyManagers(), trusted.getTrustManagers(), null);
        try (ServerSocket secure = both.getServerSocketFactory().createServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            Future<?> serving = pool.submit(() -> {
                for (;;) {
                    try (Socket socket = secure.accept()) {
                        heard.add(call(socket.getInputStream()));
                        socket.getOutputStream().write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}".getBytes());
                    } catch (SSLException e) { // the client did not like what it saw
                    }
                }
            });
            assertFalse(serving.isDone());
            assertInstanceOf(SSLException.class, assertThrows(IOException.class, () -> overTls("localhost", secure.getLocalPort())));
            SSLContext.setDefault(both);
            assertEquals("{}", overTls("localhost", secure.getLocalPort()));
            assertTrue(heard.poll(10, TimeUnit.SECONDS).contains("Host: localhost:" + secure.getLocalPort() + "\r\n"));
            assertInstanceOf(SSLException.class, assertThrows(IOException.class, () -> overTls("127.0.0.1", secure.getLocalPort())));
        } finally {
            SSLContext.setDefault(before);
        }
    }

    private String overTls(String host, int port) throws IOException {
        try (Connection connection = new Connection(URI.create("https://" + host + ":" + port + "/v1/hook"))) {
            connection.open(10_000);
            return post(connection);
        }
    }
}
