package rerank.opensearch;

import java.io.IOException;
import java.util.*;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.NumericDocValues;
import org.apache.lucene.index.ReaderUtil;
import org.apache.lucene.search.*;
import org.apache.lucene.util.BytesRef;
import org.opensearch.action.OriginalIndices;
import org.opensearch.common.document.DocumentField;
import org.opensearch.core.common.io.stream.StreamInput;
import org.opensearch.core.common.io.stream.StreamOutput;
import org.opensearch.core.index.shard.ShardId;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.index.fielddata.SortedBinaryDocValues;
import org.opensearch.index.mapper.MappedFieldType;
import org.opensearch.index.mapper.SeqNoFieldMapper;
import org.opensearch.index.query.QueryRewriteContext;
import org.opensearch.index.query.QueryShardContext;
import org.opensearch.search.SearchHit;
import org.opensearch.search.SearchShardTarget;
import org.opensearch.search.rescore.RescoreContext;
import org.opensearch.search.rescore.Rescorer;
import org.opensearch.search.rescore.RescorerBuilder;

/**
 * Has the candidates scored where they are found, in a shard that holds all of them: the search then fetches the user's page, and no
 * second one has to. It goes to shards of this node alone, with the {@link Plan} as it is; on any other it changes nothing, as where
 * there is no answer in time, and the response processor does all of it.
 */
final class ShardRescorer extends RescorerBuilder<ShardRescorer> implements Rescorer {
    static final String NAME = "rerank_stack";
    private static final Logger logger = LogManager.getLogger(ShardRescorer.class);
    private final Plan plan; // null: it has been sent to another node

    ShardRescorer(Plan plan) {
        this.plan = plan;
        windowSize(plan.depth);
    }

    ShardRescorer(StreamInput in) throws IOException {
        super(in);
        plan = null;
    }

    @Override
    protected void doWriteTo(StreamOutput out) { }

    @Override
    protected void doXContent(XContentBuilder json, Params params) throws IOException {
        json.startObject(NAME).endObject();
    }

    @Override
    public String getWriteableName() {
        return NAME;
    }

    @Override
    public RescorerBuilder<ShardRescorer> rewrite(QueryRewriteContext context) {
        return this;
    }

    /** What it needs to read the candidates' doc values. */
    private static final class Context extends RescoreContext {
        private final QueryShardContext shard;

        private Context(int window, Rescorer rescorer, QueryShardContext shard) {
            super(window, rescorer);
            this.shard = shard;
        }
    }

    @Override
    protected RescoreContext innerBuildContext(int window, QueryShardContext shard) {
        shard.nowInMillis(); // what depends on the time is not cached: it would be shown without asking the service
        return new Context(window, this, shard);
    }

    @Override
    public TopDocs rescore(TopDocs found, IndexSearcher searcher, RescoreContext context) throws IOException {
        if (plan == null || found.scoreDocs.length == 0) {
            return found;
        }
        SearchHit[] hits;
        try {
            hits = candidates(found.scoreDocs, searcher, ((Context) context).shard);
        } catch (RuntimeException e) { // of a field that cannot be read like this: the fetch of whole hits says so, or can
            logger.debug("a shard's candidates could not be read", e);
            return found;
        }
        Answer answer = plan.answer = plan.asker.now(plan, hits);
        if (answer == null || answer.passed() != null) {
            return found;
        }
        ScoreDoc[] docs = found.scoreDocs.clone();
        for (int i = 0; i < hits.length; i++) {
            Answer.Hit one = answer.hits().get(i);
            ScoreDoc was = found.scoreDocs[one.position()];
            docs[i] = new ScoreDoc(was.doc, one.score(), was.shardIndex);
        }
        return new TopDocs(found.totalHits, docs);
    }

    @Override
    public Explanation explain(int doc, IndexSearcher searcher, RescoreContext context, Explanation source) {
        return source;
    }

    /** Hits with what the service wishes for, as a fetch would give them. */
    private SearchHit[] candidates(ScoreDoc[] docs, IndexSearcher searcher, QueryShardContext shard) throws IOException {
        SearchHit[] hits = new SearchHit[Math.min(docs.length, plan.depth)];
        SearchShardTarget target = new SearchShardTarget(null, new ShardId(shard.index(), shard.getShardId()), null, OriginalIndices.NONE);
        Integer[] order = new Integer[hits.length];
        Arrays.setAll(order, i -> i);
        Arrays.sort(order, Comparator.comparingInt(i -> docs[i].doc)); // doc values are read forwards
        List<LeafReaderContext> leaves = searcher.getIndexReader().leaves();
        LeafReaderContext leaf = null;
        NumericDocValues numbers = null, terms = null;
        List<String> fields = plan.added;
        SortedBinaryDocValues[] values = new SortedBinaryDocValues[fields.size()];
        for (int i : order) {
            int doc = docs[i].doc;
            if (leaf == null || doc >= leaf.docBase + leaf.reader().maxDoc()) {
                leaf = leaves.get(ReaderUtil.subIndex(doc, leaves));
                numbers = leaf.reader().getNumericDocValues(SeqNoFieldMapper.NAME);
                terms = leaf.reader().getNumericDocValues(SeqNoFieldMapper.PRIMARY_TERM_NAME);
                for (int f = 0; f < values.length; f++) {
                    MappedFieldType type = shard.fieldMapper(fields.get(f));
                    values[f] = type == null ? null : shard.getForField(type).load(leaf).getBytesValues();
                }
            }
            SearchHit hit = hits[i] = new SearchHit(doc, null, Map.of(), Map.of());
            hit.score(docs[i].score);
            hit.shard(target);
            int within = doc - leaf.docBase;
            if (numbers != null && numbers.advanceExact(within) && terms != null && terms.advanceExact(within)) {
                hit.setSeqNo(numbers.longValue());
                hit.setPrimaryTerm(terms.longValue());
            }
            for (int f = 0; f < values.length; f++) {
                if (values[f] != null && values[f].advanceExact(within)) {
                    hit.setDocumentField(fields.get(f), new DocumentField(fields.get(f), all(values[f], fields.get(f).startsWith(Answer.FEATURES))));
                }
            }
        }
        return hits;
    }

    private static List<Object> all(SortedBinaryDocValues values, boolean bytes) throws IOException {
        List<Object> found = new ArrayList<>(values.docValueCount());
        for (int n = values.docValueCount(); n > 0; n--) {
            BytesRef value = values.nextValue();
            found.add(bytes ? BytesRef.deepCopyOf(value) : value.utf8ToString());
        }
        return found;
    }
}
