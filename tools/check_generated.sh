#!/usr/bin/env bash
# Fails when gen/python is not what proto/ generates.
set -euo pipefail
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
tools/generate_protos.sh "$fresh"
diff -r -x __pycache__ gen/python/longshore "$fresh/longshore" || { echo "error: gen/python is out of date; run make proto" >&2; exit 1; }
