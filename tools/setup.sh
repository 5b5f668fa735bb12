#!/usr/bin/env bash
# Makes .venv with the pinned packages. Does nothing when it is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=.venv/.longshore-setup
want=$(cat requirements/local.txt pyproject.toml | sha256sum)
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && exit 0

say() { echo "setup: $*" >&2; }
fail() { echo "error: $*" >&2; exit 2; }
python=${PYTHON:-python3}
command -v "$python" >/dev/null || fail "no $python on PATH: install Python 3.11 or newer, or set PYTHON="
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' ||
  fail "$("$python" --version) is not usable: Longshore needs Python 3.11, 3.12 or 3.13; set PYTHON="
[ "$(uname -s)" = Linux ] || fail "Longshore's local mode needs Linux (bubblewrap, vLLM on the CPU)"
if ! ldconfig -p 2>/dev/null | grep -q libnuma.so.1; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing libnuma1 (vLLM on the CPU needs it)"
    { apt-get update -qq && apt-get install -y -qq libnuma1; } >/dev/null 2>&1 || fail "cannot install libnuma1; install it by hand"
  else
    fail "libnuma.so.1 is missing (vLLM on the CPU needs it): apt-get install libnuma1, or your system's numactl-libs"
  fi
fi
command -v c++ >/dev/null || command -v g++ >/dev/null ||
  say "warning: no C++ compiler: parts of torch and DeepSpeed that build code on the fly fall back to slower ones; apt-get install g++"

say "making .venv (about 5 GB; a minute or two when nothing is cached)"
[ -x .venv/bin/python ] || "$python" -m venv .venv
[ -x .venv/bin/uv ] || .venv/bin/python -m pip install -q --disable-pip-version-check uv
.venv/bin/uv pip sync -q --compile-bytecode --python .venv/bin/python --require-hashes requirements/local.txt
.venv/bin/uv pip install -q --python .venv/bin/python --no-deps --no-build-isolation -e .
echo "$want" >"$stamp"
say "done"
