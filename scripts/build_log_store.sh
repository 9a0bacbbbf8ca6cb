#!/bin/sh
# Build the guarded log store: scripts/build_log_store.sh JAR CLASS_PATH. The same sources give the same bytes.
set -eu
jar=$1
class_path=$2
sources=$(dirname "$0")/../log_store/src
java=${JAVA_HOME:+$JAVA_HOME/bin/}
classes=$(mktemp -d)
trap 'rm -rf "$classes"' EXIT
find "$sources" -name '*.java' | LC_ALL=C sort > "$classes/sources"
"${java}javac" --release 17 -Xlint:all,-classfile,-path,-processing -Werror -cp "$class_path" -d "$classes/out" \
  "@$classes/sources"
"${java}jar" --create --date 2026-01-01T00:00:00Z --no-manifest --file "$jar.part" -C "$classes/out" io
mv "$jar.part" "$jar"
