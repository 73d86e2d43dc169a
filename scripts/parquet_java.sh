#!/bin/sh
# Reads tables that elasticdl exports with Java's own Parquet, parquet-hadoop, and compares every row
# with what pyarrow reads. Needs a JDK and Maven: apt-get install default-jdk-headless maven.
set -eu

for tool in javac mvn; do
    command -v "$tool" >/dev/null || {
        echo "$tool is missing; on Debian: apt-get install default-jdk-headless maven" >&2
        exit 1
    }
done
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/elasticdl/parquet-java
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# 66 MB of jars, fetched once for each list of them.
list=$root/scripts/parquet-java.xml
jars=$cache/$(cksum <"$list" | cut -d' ' -f1)
if [ ! -d "$jars" ]; then
    mkdir -p "$cache"
    mvn --quiet --batch-mode --file "$list" dependency:copy-dependencies \
        -DoutputDirectory="$jars.partial"
    mv "$jars.partial" "$jars"
fi

javac -cp "$jars/*" -d "$work" "$root/scripts/ParquetRows.java"
exec "${PYTHON:-$root/.venv/bin/python}" "$root/scripts/parquet_java.py" "$work" "$jars/*"
