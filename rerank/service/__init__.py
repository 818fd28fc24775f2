"""The HTTP service: ``rerank serve``. Needs the extra ``service`` (Starlette, uvicorn, prometheus-client).

query_text  the words of an OpenSearch query
lexical     BM25 and tf-idf of documents that come with the request
snapshot    rankers, stacks and the engine of one moment
schemas     bodies of requests and answers
work        the endpoints: snapshot + body -> answer, without HTTP
hook        the endpoint of the search-pipeline processor; hook_hits: locations and features of its hits
ids         the endpoint of the stock processors
metrics, logs
app         HTTP: limits, deadline, authentication, errors
server      sockets, worker processes, signals
"""
