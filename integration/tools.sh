#!/bin/sh
# Checks for the tools that building and Envoy need, and installs what Debian packages can bring.
# Does nothing, quickly, where everything is there.
set -eu

say() { printf 'tools: %s\n' "$*" >&2; }

if ! command -v cargo >/dev/null 2>&1; then
    say "Rust is needed: see https://www.rust-lang.org/tools/install"
    exit 1
fi
if ! command -v python3 >/dev/null 2>&1; then
    say "Python 3 is needed (on Debian: apt-get install python3)"
    exit 1
fi

missing=
command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
python3 -m pip --version >/dev/null 2>&1 || missing="$missing python3-pip"

[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    say "installing$missing"
    apt-get update -qq >&2
    # shellcheck disable=SC2086  # one word for each package
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2
else
    say "missing:$missing (on Debian: apt-get install$missing)"
    exit 1
fi
