#!/usr/bin/env bash
# Installs the lowest versions that pyproject.toml allows into a temporary environment and runs some tests:
# ingest, search, training of three families, tuning, evaluation, and the service.
# Downloads up to 3 GB (torch). Arguments replace the list of tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tests=(
    tests/unit/test_arguments.py
    tests/unit/rankers/test_cnn_ranker.py
    tests/unit/rankers/test_concept_training.py
    tests/unit/evaluation/test_evaluation.py
    tests/unit/engines/test_local_engine.py
    tests/unit/rankers/test_projection.py
    tests/unit/service/test_service_request_scores.py
    tests/unit/tuning/test_tuning.py
    tests/end_to_end/test_demo.py
)
if [ $# -gt 0 ]; then
    tests=("$@")
fi

env=$(mktemp -d "${TMPDIR:-/tmp}/rerank-lowest.XXXXXX")
trap 'rm -rf "$env"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$env"
"$env/bin/pip" install --quiet --disable-pip-version-check uv
"$env/bin/uv" pip install --quiet --python "$env/bin/python" --resolution lowest-direct \
    --editable '.[aws,fulltext,minilm,service,train]'
"$env/bin/uv" pip install --quiet --python "$env/bin/python" hypothesis pytest pytest-timeout pytest-xdist
"$env/bin/uv" pip list --python "$env/bin/python"
"$env/bin/python" -m pytest -q -n 0 -p no:cacheprovider "${tests[@]}"
