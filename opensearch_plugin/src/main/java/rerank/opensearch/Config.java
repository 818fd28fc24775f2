package rerank.opensearch;

import static org.opensearch.ingest.ConfigurationUtils.*;

import java.net.URI;
import java.net.http.HttpRequest;
import java.util.List;
import java.util.Map;

/**
 * The settings of the request processor. Times are in milliseconds. urls: tried in turn. id: the field with doc values that
 * repeats _id, or null. categories: the field of the documents' categories, or null. token: which of rerank.tokens.* is sent;
 * null: rerank.token. shadow: whether searches are scored and counted, and stay as they are. share: percent that are reranked.
 */
record Config(List<URI> urls, String stack, int depth, int timeout, boolean failuresAreErrors, boolean fetchesPage, String id,
              String categories, String token, boolean shadow, int share, int maxConnections, int breakerFailures,
              int breakerPause) {
    private static final int MOST_URLS = 16;
    private static final String PATH = "/v1/hook";

    static Config read(String tag, Map<String, Object> config) {
        return new Config(
            endpoints(tag, config), readOptionalStringProperty(RerankPlugin.PROCESSOR, tag, config, "stack"),
            number(tag, config, "depth", 100, 10_000), number(tag, config, "timeout", 1_000, 60_000),
            choice(tag, config, "on_failure", "first_stage", "error") == false, choice(tag, config, "fetch", "page", "candidates"),
            field(tag, config, "id_field"), field(tag, config, "categories_field"),
            readOptionalStringProperty(RerankPlugin.PROCESSOR, tag, config, "token_name"),
            readBooleanProperty(RerankPlugin.PROCESSOR, tag, config, "shadow", false), number(tag, config, "share", 100, 100),
            number(tag, config, "max_connections", 128, 10_000),
            number(tag, config, "breaker_failures", 5, 1_000_000), number(tag, config, "breaker_pause", 5_000, 3_600_000));
    }

    /** Whether a list of URLs without paths of their own names this one; its port may be a star. */
    static boolean allows(List<String> allowed, URI url) {
        String base = url.toString().substring(0, url.toString().length() - PATH.length());
        return allowed.stream().map(one -> one.replaceAll("/+$", "")).anyMatch(one -> one.equals(base)
            || one.endsWith(":*") && base.matches("\\Q" + one.substring(0, one.length() - 1) + "\\E\\d+"));
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

    private static String field(String tag, Map<String, Object> config, String name) {
        String field = readOptionalStringProperty(RerankPlugin.PROCESSOR, tag, config, name);
        if (field != null && field.matches("[^*?,\\s]{1,200}") == false) {
            throw newConfigurationException(RerankPlugin.PROCESSOR, tag, name, "must be the name of one field");
        }
        return field;
    }

    private static List<URI> endpoints(String tag, Map<String, Object> config) {
        List<String> urls = config.get("url") instanceof List<?>
            ? readList(RerankPlugin.PROCESSOR, tag, config, "url") : List.of(readStringProperty(RerankPlugin.PROCESSOR, tag, config, "url"));
        if (urls.isEmpty() || urls.size() > MOST_URLS) {
            throw newConfigurationException(RerankPlugin.PROCESSOR, tag, "url", "must be one URL, or a list of at most " + MOST_URLS);
        }
        return urls.stream().map(url -> endpoint(tag, String.valueOf((Object) url))).toList();
    }

    private static URI endpoint(String tag, String url) {
        // No user and password: everybody who may see the pipeline would read them. The token is in the keystore.
        String endpoint = url.matches("[^@?#]*") ? url.replaceAll("/+$", "") + PATH : "";
        try {
            return HttpRequest.newBuilder(URI.create(endpoint)).build().uri(); // what cannot be called is refused here
        } catch (IllegalArgumentException e) {
            throw newConfigurationException(RerankPlugin.PROCESSOR, tag, "url", "must look like https://host:port");
        }
    }
}
