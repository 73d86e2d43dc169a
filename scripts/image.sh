#!/bin/sh
# Builds the image of elasticdl, without a model. A wheel of this processor in dist/ (make wheel) is
# taken as it is, and then nothing needs Rust. These variables may be set:
#
#   ENGINE=docker (or podman, buildah)  BASE_IMAGE=python:3.11-slim-bookworm
#   EXTRAS=kubernetes,etcd,parquet,tensorflow,dashboard  IMAGE=elasticdl:VERSION
set -eu
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
base=${BASE_IMAGE:-python:3.11-slim-bookworm}
set -- --build-arg=BASE_IMAGE="$base"
for wheel in dist/elasticdl_train-*_"$(uname -m)".whl; do
    [ ! -e "$wheel" ] || set -- "$@" --build-arg=BUILD_IMAGE="$base"
done
exec "${ENGINE:-docker}" build --file=deploy/Dockerfile --tag="${IMAGE:-elasticdl:$version}" "$@" \
    --build-arg=EXTRAS="${EXTRAS:-kubernetes,etcd,parquet,tensorflow,dashboard}" .
