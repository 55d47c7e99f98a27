#!/usr/bin/env bash
# Builds the program of integration/istio, with istiod inside, into the file that is named. Cold, on two
# cores, it takes about five minutes; the Go modules come from Go's module proxy.
set -euo pipefail
out=$(realpath -m "$1")
wanted=1.26
cd "$(dirname "$0")/istio"
go=$(command -v go || true)
[ -n "$go" ] || { [ -x /usr/local/go/bin/go ] && go=/usr/local/go/bin/go; } || {
	echo "Go is missing. Install Go $wanted or later (https://go.dev/doc/install), or put it into PATH." >&2
	exit 1
}
have=$(GOTOOLCHAIN=local "$go" env GOVERSION)
have=${have#go}
if [ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -n 1)" != "$wanted" ]; then
	echo "$go is Go $have. Install Go $wanted or later (https://go.dev/doc/install)." >&2
	exit 1
fi
if [ -x "${go%/go}/gofmt" ] && [ -n "$("${go%/go}/gofmt" -l .)" ]; then
	echo "Run gofmt -w integration/istio" >&2
	exit 1
fi
# The folder of Istio's module: its CRDs and templates are read at run time.
"$go" mod download istio.io/istio
source=$("$go" list -m -f '{{.Dir}}' istio.io/istio)
mkdir -p "$(dirname "$out")"
"$go" build -ldflags "-s -w -X main.istioSrc=$source" -o "$out" .
