#!/bin/sh
# A stranger's seal scheme, installed by pip from a wheel beside kvbaton's wheel, passes the public
# suite outside the clone, and signs a real hand-off that another process verifies and takes.  torch
# and the like, and the model, are those of the environment that runs this script.
set -eu

root=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
python=${PYTHON:-python3}
unset PYTHONPATH || true
export HF_HUB_OFFLINE=1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

model=$("$python" -c 'from kvbaton import models, settings
print(models.resolve("smollm2-135m", data_dir=settings.from_environment().data_dir).path_or_id)')

echo "building both wheels"
"$python" -m pip --disable-pip-version-check wheel -qq --no-deps --wheel-dir "$work/wheels" \
    "$root" "$root/examples/thirdparty_seal"

echo "installing them into an environment of their own"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check install -qq --no-deps \
    "$work"/wheels/kvbaton-*.whl "$work"/wheels/kvbaton_ed448_seal-*.whl
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/dependencies.pth"

echo "running its tests outside the clone"
cp -r "$root/examples/thirdparty_seal/tests" "$work/tests"
cd "$work"
"$work/venv/bin/python" -m pytest -q -W error -p no:cacheprovider tests
"$work/venv/bin/python" - "$work" <<'CHECK'
import sys

import kvbaton.seals
import kvbaton_ed448_seal

for module in (kvbaton.seals, kvbaton_ed448_seal):
    if not module.__file__.startswith(sys.argv[1]):
        sys.exit(f"{module.__name__} does not come from the wheel: {module.__file__}")
CHECK

echo "handing off and taking with its keys"
export KVBATON_DATA_DIR="$work/data" KVBATON_CACHE_DIR="$work/cache"
kvbaton() { "$work/venv/bin/kvbaton" "$@"; }
field() { "$work/venv/bin/python" -c '
import json, sys
value = json.load(sys.stdin)
for name in sys.argv[1:]:
    value = value[name]
print(value)' "$@"; }
same() { [ "$1" = "$2" ] || { echo "$3: $1 where $2 was expected" >&2; exit 1; }; }

key=$(kvbaton keys generate --scheme ed448 --sender planner --json | field keyid)
echo "The spare key lies under the third stone behind the well." > context.txt
baton=$(kvbaton export --model "$model" --context context.txt --name planner \
    --store "dir://$work/store" --max-new-tokens 4 --json | field baton)
signer=$("$work/venv/bin/python" - "$work/store" "$baton" <<'SIGNER'
import json, pathlib, sys

(path,) = (p for p in pathlib.Path(sys.argv[1]).rglob("*") if sys.argv[2] in p.name and p.is_file())
print(json.loads(path.read_bytes())["signatures"][0]["keyid"])
SIGNER
)
same "$signer" "$key" "the key that signed"

take() {
    kvbaton take --model "$model" --baton "$baton" --store "dir://$work/store" \
        --instruction "Where does the key lie?" --max-new-tokens 4 --json
}
take > taken.json
same "$(field receipt route < taken.json)" baton "the route"

kvbaton keys revoke "$key" > /dev/null
code=0
take > revoked.json || code=$?
same "$code" 6 "the exit code with a revoked key"
same "$(field error code < revoked.json)" not-trusted "the error with a revoked key"

"$work/venv/bin/python" -m pip --disable-pip-version-check uninstall -qq --yes kvbaton-ed448-seal
code=0
take > absent.json || code=$?
same "$code" 3 "the exit code without the scheme"
case $(field error sentence < absent.json) in
    *ed448*) ;;
    *) echo "the error does not name the scheme that is missing" >&2; exit 1 ;;
esac
echo "a third-party seal passes SealTests, and signs what another process takes"
