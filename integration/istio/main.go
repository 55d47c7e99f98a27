// Program istiod-lab runs istiod's own discovery server in this process, with its fake Kubernetes
// client, and serves delta ADS. The lab (a Rust program, its parent) tells it over HTTP what a cluster's
// API server would tell istiod: see api.go. It ends when its standard input ends.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"

	"istio.io/istio/pilot/pkg/features"
	"istio.io/istio/pilot/test/xds"
	"istio.io/istio/pkg/config/mesh"
	istiolog "istio.io/istio/pkg/log"
)

// istioSrc is the folder of the module istio.io/istio: CRDs, the bootstrap's and the waypoint's templates.
// The build sets it with -ldflags -X.
var istioSrc string

const (
	systemNamespace = "istio-system"
	domain          = "cluster.local"
)

// initialObjects is what istioctl's ambient profile and the Gateway API's installation leave in a cluster
// and what istiod itself creates at its first start (GatewayClass).
const initialObjects = `apiVersion: v1
kind: Namespace
metadata:
  name: istio-system
---
apiVersion: v1
kind: Namespace
metadata:
  name: default
  labels:
    istio.io/dataplane-mode: ambient
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata:
  name: istio-waypoint
  labels:
    istio.io/waypoint-for: service
spec:
  controllerName: istio.io/mesh-controller
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata:
  name: istio
spec:
  controllerName: istio.io/gateway-controller
`

// installedMesh is the mesh configuration that the chart writes where nothing is asked for.
const installedMesh = `
trustDomain: cluster.local
rootNamespace: istio-system
defaultProviders:
  metrics: [prometheus]
`

func main() {
	api := flag.String("api", "", "path of the Unix socket for commands")
	ads := flag.String("ads", "tcp:127.0.0.1:0", "where delta ADS is served: tcp:ADDRESS or unix:PATH")
	meshFile := flag.String("mesh", "", "YAML file that is merged over the mesh configuration as installed")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	// Standard output is the parent's.
	logging := istiolog.DefaultOptions()
	logging.OutputPaths = []string{"stderr"}
	if err := istiolog.Configure(logging); err != nil {
		log.Fatal(err)
	}
	if err := checkFeatures(); err != nil {
		log.Fatal(err)
	}
	meshConfig, err := mesh.ApplyMeshConfigDefaults(installedMesh)
	if err != nil {
		log.Fatalf("mesh configuration: %v", err)
	}
	if *meshFile != "" {
		text, err := os.ReadFile(*meshFile)
		if err != nil {
			log.Fatal(err)
		}
		if meshConfig, err = mesh.ApplyMeshConfig(string(text), meshConfig); err != nil {
			log.Fatalf("mesh configuration %s: %v", *meshFile, err)
		}
	}
	network, address, ok := strings.Cut(*ads, ":")
	if !ok {
		log.Fatalf("-ads %q: must be tcp:ADDRESS or unix:PATH", *ads)
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		log.Fatal(err)
	}
	commands, err := net.Listen("unix", *api)
	if err != nil {
		log.Fatalf("-api %q: %v", *api, err)
	}

	server := xds.NewFakeDiscoveryServer(&failer{}, xds.FakeOptions{
		KubernetesObjectString: initialObjects,
		MeshConfig:             meshConfig,
		// istiod's own value; the fake server would not debounce at all.
		DebounceTime:    features.DebounceAfter,
		ListenerBuilder: func() (net.Listener, error) { return listener, nil },
		// What istiod's webhook server would say of secrets is of no interest here.
		DisableSecretAuthorization: true,
	})
	cluster, err := newCluster(server)
	if err != nil {
		log.Fatal(err)
	}
	ready := map[string]any{
		"ads":               listener.Addr().String(),
		"istio":             istioVersion(),
		"debounce_after_ms": features.DebounceAfter.Milliseconds(),
		"debounce_max_ms":   features.DebounceMax.Milliseconds(),
	}
	// One line: the parent waits for it.
	if err := json.NewEncoder(os.Stdout).Encode(ready); err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(http.Serve(commands, cluster.routes())) }()
	// The parent holds the other end for as long as it lives.
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// checkFeatures refuses to run with other features than an ambient installation has: they are read from
// the environment when the program starts, and some of them only if others are set.
func checkFeatures() error {
	for _, feature := range []struct {
		name         string
		have, wanted bool
	}{
		{"PILOT_ENABLE_AMBIENT", features.EnableAmbient, true},
		{"PILOT_ENABLE_AMBIENT_WAYPOINTS", features.EnableAmbientWaypoints, true},
		{"AMBIENT_ENABLE_MULTI_NETWORK_WAYPOINT", features.EnableAmbientWaypointMultiNetwork, true},
		{"AMBIENT_ENABLE_MULTI_NETWORK", features.EnableAmbientMultiNetwork, false},
		{"AMBIENT_ENABLE_BAGGAGE", features.EnableAmbientBaggage, false},
		{"PILOT_ENABLE_METADATA_EXCHANGE", features.MetadataExchange, true},
		{"PILOT_ENABLE_EDS_DEBOUNCE", features.EnableEDSDebounce, true},
		{"PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS", features.DefaultSendUnhealthyEndpoints.Load(), true},
		{"ISTIO_DELTA_XDS", features.DeltaXds, true},
		{"PILOT_ENABLE_GATEWAY_API", features.EnableGatewayAPI, true},
	} {
		if feature.have != feature.wanted {
			return fmt.Errorf("feature %s is %v, and an ambient installation has %v: set the environment", feature.name, feature.have, feature.wanted)
		}
	}
	if istioSrc == "" {
		return fmt.Errorf("built without the folder of istio.io/istio: run make test-istio")
	}
	return nil
}

// failer stands in for a test: istiod's fake server reports through one.
type failer struct{}

func (f *failer) Fail()                           { log.Fatal("failed") }
func (f *failer) FailNow()                        { log.Fatal("failed") }
func (f *failer) Fatal(args ...any)               { log.Fatal(args...) }
func (f *failer) Fatalf(text string, args ...any) { log.Fatalf(text, args...) }
func (f *failer) Log(args ...any)                 { log.Print(args...) }
func (f *failer) Logf(text string, args ...any)   { log.Printf(text, args...) }
func (f *failer) Skip(args ...any)                { log.Fatal(args...) }
func (f *failer) Helper()                         {}

// Cleanup does nothing: the process ends with what it has.
func (f *failer) Cleanup(func()) {}

func (f *failer) TempDir() string {
	folder, err := os.MkdirTemp("", "istiod-lab-")
	if err != nil {
		log.Fatal(err)
	}
	return folder
}
