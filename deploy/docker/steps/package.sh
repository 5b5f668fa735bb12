#!/bin/bash
# package.sh SOURCE OUT: our own code as it lies in /opt/longshore, alone, so that it is a layer of its own.
. "$(dirname "$0")/tools.sh"
source=$1 out=$2

# hatchling leaves out what it does not find, without a word.
for package in $(python3 -c '
import sys, tomllib
print(*tomllib.load(sys.stdin.buffer)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])' <"$source/pyproject.toml"); do
  [ -d "$source/$package" ] || { echo "error: $package is not in the build's context: see .dockerignore" >&2; exit 2; }
done
make_tools
"$TOOLS/bin/uv" build -q --no-cache --wheel --no-build-isolation --python "$TOOLS/bin/python" --out-dir "$TOOLS/wheel" "$source"
python3 -m venv --without-pip /opt/longshore
"$TOOLS/bin/uv" pip install -q --no-cache --no-deps --compile-bytecode --python /opt/longshore/bin/python "$TOOLS"/wheel/*.whl
cd /opt/longshore
mkdir -p "$out"
cp -a --parents bin/longshore lib/python3*/site-packages "$out"
