#!/bin/bash
# Pins base images and packages. Run it, check the difference, build, and commit.
#
#   pin.sh images      write the current digests of the base images into the Dockerfile
#   pin.sh packages    write versions and hashes of the Python packages into requirements/
set -euo pipefail
cd "$(dirname "$0")"

images() {
    local name image digest
    while IFS='=' read -r name image; do
        digest=$(docker buildx imagetools inspect "${image%@*}" --format '{{.Manifest.Digest}}')
        sed -i "s|^ARG $name=.*|ARG $name=${image%@*}@$digest|" Dockerfile
        echo "$name=${image%@*}@$digest"
    done < <(sed -n 's/^ARG \([A-Z]*=[a-z].*:.*\)/\1/p' Dockerfile)
}

packages() {
    local how=(uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet)
    "${how[@]}" ../pyproject.toml --extra service --output-file requirements/service.txt
    "${how[@]}" ../pyproject.toml --extra train --constraint requirements/service.txt \
        --output-file requirements/train.txt
    echo 'setuptools>=77' | "${how[@]}" - --output-file requirements/build.txt
}

case ${1:-} in
    images | packages)
        "$1"
        ;;
    *)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
        exit 2
        ;;
esac
