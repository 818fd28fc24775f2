#!/bin/bash
# What the containers of compose.yaml do. tests/end_to_end/test_docker.py runs the same steps without them.
#
#   steps.sh plugin HOME ZIP     put the plugin into an OpenSearch
#   steps.sh opensearch [ARG..]  hand the token and the service's URL to OpenSearch, and start it
#   steps.sh demo                ingest the demo collection, train on it and tune a stack; once
#   steps.sh serve [ARG..]       start the service
#   steps.sh hook                have every search of the index reranked, and try one
#   steps.sh healthy URL         whether an HTTP server answers 200
set -euo pipefail

: "${OPENSEARCH_HOME:=/usr/share/opensearch}"     # where it is unpacked
: "${OPENSEARCH_URL:=http://opensearch:9200}"     # as the other containers reach it
: "${SERVICE_URL:=http://service:8765}"           # as OpenSearch reaches it
: "${SERVICE_HOST:=0.0.0.0}"
: "${SERVICE_PORT:=8765}"
: "${WORKSPACE:=/workspace}"
: "${INDEX:=articles}"
: "${SIGNALS:=bm25,text,meta}"                    # bm25: what a plain match query scores by
: "${TOKEN_FILE:=/run/secrets/rerank_token}"
: "${COLLECTION:=}"                               # another than the demo's, laid out like it
: "${EPOCHS:=}"

plugin() {
    "$1/bin/opensearch-plugin" install --batch "file://$2"
}

keystore() {
    local keystore=$OPENSEARCH_HOME/bin/opensearch-keystore
    [ -e "${OPENSEARCH_PATH_CONF:-$OPENSEARCH_HOME/config}/opensearch.keystore" ] || "$keystore" create
    "$keystore" add --stdin --force rerank.token < "$TOKEN_FILE"
}

opensearch() {
    keystore
    exec "$OPENSEARCH_HOME/bin/opensearch" "-Ererank.allowed_urls=$SERVICE_URL" "$@"
}

demo() {
    if rerank query wolf --stack "$SIGNALS" -w "$WORKSPACE" > /dev/null 2>&1; then
        echo "the workspace is there"
        return
    fi
    local from=${COLLECTION:-$(python3 -c 'from rerank.demo import COLLECTION; print(COLLECTION)')}
    local queries=(--queries "$from/queries.jsonl.gz")
    rerank ingest "$from/corpus.jsonl.gz" --categories "$from/categories.tsv" \
        --url "$OPENSEARCH_URL" --index "$INDEX" --replicas 0 -w "$WORKSPACE"
    rerank train text meta "${queries[@]}" --qrels "$from/qrels/train.tsv" \
        --dev-qrels "$from/qrels/dev.tsv" ${EPOCHS:+--epochs "$EPOCHS"} -w "$WORKSPACE"
    # A plain search brings no categories, so the stack is tuned for queries without.
    rerank tune --stack "$SIGNALS" "${queries[@]}" --qrels "$from/qrels/dev.tsv" \
        --ignore-categories -w "$WORKSPACE"
}

serve() {
    exec rerank serve -w "$WORKSPACE" --stack "$SIGNALS" --host "$SERVICE_HOST" --port "$SERVICE_PORT" \
        --token-file "$TOKEN_FILE" "$@"
}

hook() {
    rerank hook install --service "$SERVICE_URL" --stack "$SIGNALS" --default -w "$WORKSPACE"
    rerank hook test "how do bacteria become resistant" -w "$WORKSPACE"
}

healthy() {
    local rest=${1#http://} answer
    local address=${rest%%/*} path=/${rest#*/}
    exec 3<> "/dev/tcp/${address%:*}/${address##*:}"
    printf 'GET %s HTTP/1.0\r\nHost: %s\r\n\r\n' "$path" "$address" >&3
    read -r -t 5 answer <&3
    [[ $answer == *" 200 "* ]]
}

step=${1:-}
case $step in
    plugin | opensearch | demo | serve | hook | healthy)
        shift
        "$step" "$@"
        ;;
    *)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
        exit 2
        ;;
esac
