#!/bin/sh
# A stranger's policy, installed by pip from a wheel beside kvbaton's wheel, passes the public suite
# outside the clone, and decides over a real take that `kvbaton explain` explains.  torch and the
# like, and the model, are those of the environment that runs this script.
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
    "$root" "$root/examples/thirdparty_policy"

echo "installing them into an environment of their own"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check install -qq --no-deps \
    "$work"/wheels/kvbaton-*.whl "$work"/wheels/kvbaton_sure_win_policy-*.whl
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/dependencies.pth"

echo "running its tests outside the clone"
cp -r "$root/examples/thirdparty_policy/tests" "$work/tests"
cd "$work"
"$work/venv/bin/python" -m pytest -q -W error -p no:cacheprovider tests
"$work/venv/bin/python" - "$work" <<'CHECK'
import sys

import kvbaton.policy
import kvbaton_sure_win_policy

for module in (kvbaton.policy, kvbaton_sure_win_policy):
    if not module.__file__.startswith(sys.argv[1]):
        sys.exit(f"{module.__name__} does not come from the wheel: {module.__file__}")
CHECK

echo "handing off and taking under its decisions"
export KVBATON_DATA_DIR="$work/data" KVBATON_CACHE_DIR="$work/cache"
kvbaton() { "$work/venv/bin/kvbaton" "$@"; }
field() { "$work/venv/bin/python" -c '
import json, sys
value = json.load(sys.stdin)
for name in sys.argv[1:]:
    value = value[int(name) if name.isdigit() else name]
print(value)' "$@"; }
same() { [ "$1" = "$2" ] || { echo "$3: $1 where $2 was expected" >&2; exit 1; }; }

echo "The spare key lies under the third stone behind the well." > context.txt
baton=$(kvbaton export --model "$model" --context context.txt --name planner \
    --store "dir://$work/store" --max-new-tokens 4 --json | field baton)
take() {
    kvbaton take --model "$model" --baton "$baton" --store "dir://$work/store" \
        --instruction "Where does the key lie?" --max-new-tokens 4 --json
}
take > before.json
same "$(field receipt route < before.json)" baton "the route without a policy file"

mkdir -p "$work/data"
echo 'policy = "sure-win"' > "$work/data/policy.toml"
take > after.json
same "$(field receipt route < after.json)" text "the route under the third party's policy"
same "$(field receipt decision policy < after.json)" sure-win "the policy in the receipt"
kvbaton explain - --json < after.json > explained.json
same "$(field decided_by < explained.json)" sure-win "what decided"

"$work/venv/bin/python" -m pip --disable-pip-version-check uninstall -qq --yes \
    kvbaton-sure-win-policy
take > absent.json
same "$(field receipt route < absent.json)" text "the route while the policy is missing"
case $(field receipt warnings 0 sentence < absent.json) in
    *sure-win*) ;;
    *) echo "the receipt does not name the policy that is missing" >&2; exit 1 ;;
esac
echo "a third-party policy passes PolicyTests, and decides over what another process takes"
