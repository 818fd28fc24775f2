package rerank.opensearch;

import java.util.List;
import java.util.function.Consumer;
import org.opensearch.index.query.QueryBuilder;

/**
 * What the request processor leaves for the response processor.
 *
 * @param skipped why nothing is to do: passed or failed, with a reason; else null
 * @param from    the user's window: from and size
 * @param features what the hits carry for the service, and added: the fields of them that the user did not ask for
 * @param remember takes the features that the service asks for
 */
record Plan(
    String skipped,
    String reason,
    RerankExt ext,
    Config config,
    Service service,
    int depth,
    int from,
    int size,
    QueryBuilder query,
    String stack,
    String[] indices,
    List<String> features,
    List<String> added,
    Consumer<List<String>> remember
) {
    static final String KEY = "rerank.plan";

    static Plan skip(String skipped, String reason, RerankExt ext) {
        return new Plan(skipped, reason, ext, null, null, 0, 0, 0, null, null, null, null, null, null);
    }
}
