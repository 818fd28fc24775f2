package rerank.opensearch;

import static org.opensearch.ingest.ConfigurationUtils.*;

import java.net.URI;
import java.net.http.HttpRequest;
import java.util.Map;

/** The settings of the request processor. Times are in milliseconds. */
record Config(URI url, String stack, int depth, int timeout, boolean failuresAreErrors, boolean fetchesPage,
              int maxConnections, int breakerFailures, int breakerPause) {

    static Config read(String tag, Map<String, Object> config) {
        return new Config(
            endpoint(tag, readStringProperty(RerankPlugin.PROCESSOR, tag, config, "url")),
            readOptionalStringProperty(RerankPlugin.PROCESSOR, tag, config, "stack"),
            number(tag, config, "depth", 100, 10_000), number(tag, config, "timeout", 1_000, 60_000),
            choice(tag, config, "on_failure", "first_stage", "error") == false, choice(tag, config, "fetch", "page", "candidates"),
            number(tag, config, "max_connections", 128, 10_000),
            number(tag, config, "breaker_failures", 5, 1_000_000), number(tag, config, "breaker_pause", 5_000, 3_600_000));
    }

    /** Whether it is the standard, and not the other word. */
    private static boolean choice(String tag, Map<String, Object> config, String name, String standard, String other) {
        String word = readStringProperty(RerankPlugin.PROCESSOR, tag, config, name, standard);
        if (word.equals(standard) == false && word.equals(other) == false) {
            throw newConfigurationException(RerankPlugin.PROCESSOR, tag, name, "must be " + standard + " or " + other);
        }
        return word.equals(standard);
    }

    private static int number(String tag, Map<String, Object> config, String name, int standard, int most) {
        int value = readIntProperty(RerankPlugin.PROCESSOR, tag, config, name, standard);
        if (value < 1 || value > most) {
            throw newConfigurationException(RerankPlugin.PROCESSOR, tag, name, "must be from 1 to " + most);
        }
        return value;
    }

    private static URI endpoint(String tag, String url) {
        // No user and password: everybody who may see the pipeline would read them. The token is in the keystore.
        String endpoint = url.matches("[^@?#]*") ? url.replaceAll("/+$", "") + "/v1/hook" : "";
        try {
            return HttpRequest.newBuilder(URI.create(endpoint)).build().uri(); // what cannot be called is refused here
        } catch (IllegalArgumentException e) {
            throw newConfigurationException(RerankPlugin.PROCESSOR, tag, "url", "must look like https://host:port");
        }
    }
}
