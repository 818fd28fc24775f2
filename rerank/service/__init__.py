"""The HTTP service: ``rerank serve``. Needs the extra ``service`` (Starlette, uvicorn, prometheus-client).

query_text  the words of an OpenSearch query
lexical     BM25 and tf-idf of documents that come with the request
snapshot    what the service answers from: rankers, stacks and the engine, as they were at one moment
bodies      what requests and answers look like
work        the endpoints: snapshot + body -> answer; nothing in it knows of HTTP
metrics, logs
app         HTTP: limits, deadline, authentication, errors
server      sockets, worker processes, signals
"""
