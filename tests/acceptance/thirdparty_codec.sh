#!/bin/sh
# A stranger's codec, installed by pip from a wheel beside kvbaton's wheel, passes the public suite,
# outside the clone.  torch and the like are those of the environment that runs this script.
set -eu

root=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
python=${PYTHON:-python3}
unset PYTHONPATH || true

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

echo "building both wheels"
"$python" -m pip --disable-pip-version-check wheel -qq --no-deps --wheel-dir "$work/wheels" \
    "$root" "$root/examples/thirdparty_codec"

echo "installing them into an environment of their own"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check install -qq --no-deps \
    "$work"/wheels/kvbaton-*.whl "$work"/wheels/kvbaton_mulaw_codec-*.whl
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/dependencies.pth"

echo "running its tests outside the clone"
cp -r "$root/examples/thirdparty_codec/tests" "$work/tests"
cd "$work"
"$work/venv/bin/python" -m pytest -q -W error -p no:cacheprovider tests
"$work/venv/bin/python" - "$work" <<'CHECK'
import sys

import kvbaton.codecs
import kvbaton_mulaw_codec

for module in (kvbaton.codecs, kvbaton_mulaw_codec):
    if not module.__file__.startswith(sys.argv[1]):
        sys.exit(f"{module.__name__} does not come from the wheel: {module.__file__}")
CHECK
echo "a third-party codec passes CodecTests"
