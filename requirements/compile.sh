#!/usr/bin/env bash
# Recompile the pins: one universal resolution (local.txt), and the role files constrained to it.
set -euo pipefail
cd "$(dirname "$0")"
pin() { uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --override overrides.txt "$@"; }
pin local.in -o local.txt
for role in services trainer engine-cpu cpu dev images; do pin "$role.in" -c local.txt -o "$role.txt"; done
# GPU hosts resolve their own torch, so no override and no shared constraint.
uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header engine-gpu.in -o engine-gpu.txt
