#!/bin/bash
# Steps of the containers in compose.yaml. tests/end_to_end/test_docker.py runs the same steps without containers.
#
#   steps.sh plugin HOME ZIP     install the plugin into an OpenSearch
#   steps.sh opensearch [ARG..]  start OpenSearch with the token and the URL of the service
#   steps.sh demo                ingest the demo collection, train, and tune a stack, unless this is done
#   steps.sh serve [ARG..]       start the service
#   steps.sh hook                make the hook the default of the index, and test a search
#   steps.sh healthy URL         succeed if an HTTP server answers 200
set -euo pipefail

: "${OPENSEARCH_HOME:=/usr/share/opensearch}"     # its folder
: "${OPENSEARCH_URL:=http://opensearch:9200}"     # URL for the other containers
: "${SERVICE_URL:=http://service:8765}"           # URL for OpenSearch
: "${SERVICE_HOST:=0.0.0.0}"
: "${SERVICE_PORT:=8765}"
: "${WORKSPACE:=/workspace}"
: "${INDEX:=articles}"
: "${SIGNALS:=bm25,text,meta}"                    # bm25 is the score of a plain match query
: "${TOKEN_FILE:=/run/secrets/rerank_token}"
: "${COLLECTION:=}"                               # another collection with the demo's layout
: "${EPOCHS:=}"

plugin() {
    "$1/bin/opensearch-plugin" install --batch "file://$2"
}

keystore() {
    local keystore=$OPENSEARCH_HOME/bin/opensearch-keystore
    [ -e "${OPENSEARCH_PATH_CONF:-$OPENSEARCH_HOME/config}/opensearch.keystore" ] || "$keystore" create
    "$keystore" add --stdin --force plugins.rerank_stack.token < "$TOKEN_FILE"
}

opensearch() {
    keystore
    exec "$OPENSEARCH_HOME/bin/opensearch" "-Eplugins.rerank_stack.allowed_urls=$SERVICE_URL" "$@"
}

demo() {
    if rerank query wolf --stack "$SIGNALS" -w "$WORKSPACE" > /dev/null 2>&1; then
        echo "the workspace is there"
        return
    fi
    local from=${COLLECTION:-$(python3 -c 'from rerank.workflows.demo import COLLECTION; print(COLLECTION)')}
    local queries=(--queries "$from/queries.jsonl.gz")
    rerank ingest "$from/corpus.jsonl.gz" --categories "$from/categories.tsv" \
        --url "$OPENSEARCH_URL" --index "$INDEX" --replicas 0 -w "$WORKSPACE"
    rerank train text meta "${queries[@]}" --qrels "$from/qrels/train.tsv" \
        --dev-qrels "$from/qrels/dev.tsv" ${EPOCHS:+--epochs "$EPOCHS"} -w "$WORKSPACE"
    # A plain search has no categories, so the stack is tuned for queries without categories.
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
