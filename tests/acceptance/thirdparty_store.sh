#!/bin/sh
# A stranger's store, installed by pip into a clean environment, passes the public suite there:
# outside the clone, and without torch.
set -eu

root=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
python=${PYTHON:-python3}
unset PYTHONPATH || true

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

echo "building both wheels"
"$python" -m pip --disable-pip-version-check wheel -qq --no-deps --wheel-dir "$work/wheels" \
    "$root" "$root/examples/thirdparty_store"

echo "installing them into a clean environment"
"$python" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip --disable-pip-version-check install -qq "$@"; }
pip blake3 fsspec numpy platformdirs psutil pytest hypothesis
pip --no-deps "$work"/wheels/kvbaton-*.whl "$work"/wheels/kvbaton_sqlite_store-*.whl

echo "running its tests outside the clone"
cp -r "$root/examples/thirdparty_store/tests" "$work/tests"
cd "$work"
"$work/venv/bin/python" -m pytest -q -W error -p no:cacheprovider tests
"$work/venv/bin/python" - "$work" "$root" <<'CHECK'
import importlib.util
import sys

import kvbaton.stores
import kvbaton_sqlite_store

work, root = sys.argv[1:]
for module in (kvbaton.stores, kvbaton_sqlite_store):
    if not module.__file__.startswith(work) or module.__file__.startswith(root):
        sys.exit(f"{module.__name__} does not come from the wheel: {module.__file__}")
if importlib.util.find_spec("torch"):
    sys.exit("torch is installed, so this does not show that it is not needed")
CHECK
echo "a third-party store passes StoreTests"
