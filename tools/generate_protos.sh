#!/usr/bin/env bash
# Regenerate gen/python from proto/. Without arguments in place; with a folder, there (make check diffs the two).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/gen/python}
mkdir -p "$out"
cd "$root/proto"
mapfile -t files < <(find longshore -name '*.proto' | LC_ALL=C sort)
python -m grpc_tools.protoc -I. --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" "${files[@]}"
find "$out/longshore" -type d -exec touch {}/__init__.py \;
