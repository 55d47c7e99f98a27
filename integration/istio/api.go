package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"

	"istio.io/istio/pkg/kube"
)

type groupVersionResource = schema.GroupVersionResource

var (
	// Unknown fields are errors, as with kubectl.
	strictCodecs  = serializer.NewCodecFactory(kube.IstioScheme, serializer.EnableStrict)
	clusterScoped = map[string]bool{"Namespace": true, "Node": true, "GatewayClass": true}
)

// routes are the commands:
//
//	POST /apply      body: YAML         creates or replaces; answers the webhook's warnings
//	POST /delete     body: YAML         by kind, namespace and name
//	POST /validate   body: YAML         what /apply would refuse; changes nothing
//	POST /step?namespace=&pod=&step=    unready, ready, terminate, gone
//	POST /replace?namespace=&pod=       body: the successor's YAML; all steps in a row
//	POST /bootstrap  body: JSON         Envoy's bootstrap as pilot-agent writes it
//	POST /render     body: YAML         what istiod's controller makes of a Gateway and its ConfigMaps
//	POST /kustomize?folder=             what kubectl apply -k would apply
//	GET  /state                         updates taken in and pushed, and each proxy's answers
//	GET  /debug/...                     istiod's own debug pages
func (c *cluster) routes() http.Handler {
	mux := http.NewServeMux()
	command := func(pattern string, run func(*http.Request, string) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			var answer any
			if err == nil {
				answer, err = run(r, string(body))
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusUnprocessableEntity)
				return
			}
			w.Header().Set("content-type", "application/json")
			_ = json.NewEncoder(w).Encode(answer)
		})
	}
	command("POST /apply", func(_ *http.Request, body string) (any, error) {
		warnings, err := c.apply(body)
		return map[string]any{"warnings": warnings}, err
	})
	command("POST /delete", func(_ *http.Request, body string) (any, error) { return nil, c.delete(body) })
	command("POST /validate", func(_ *http.Request, body string) (any, error) {
		documents, warnings, err := c.parse(body)
		return map[string]any{"objects": len(documents), "warnings": warnings}, err
	})
	command("POST /step", func(r *http.Request, _ string) (any, error) {
		return nil, c.step(podOf(r), step(r.URL.Query().Get("step")))
	})
	command("POST /replace", func(r *http.Request, body string) (any, error) { return nil, c.replace(podOf(r), body) })
	command("POST /bootstrap", func(_ *http.Request, body string) (any, error) { return bootstrapOf(body) })
	command("POST /render", func(_ *http.Request, body string) (any, error) { return c.render(body) })
	command("POST /kustomize", func(r *http.Request, _ string) (any, error) {
		text, err := kustomize(r.URL.Query().Get("folder"))
		return map[string]any{"yaml": text}, err
	})
	command("GET /state", func(*http.Request, string) (any, error) { return c.state() })
	mux.Handle("GET /debug/", c.server.DiscoveryDebug)
	return mux
}

// state is what has been taken in and pushed, and what each proxy has been sent and has answered.
func (c *cluster) state() (any, error) {
	recorder := httptest.NewRecorder()
	request, err := http.NewRequest(http.MethodGet, "/debug/syncz", nil)
	if err != nil {
		return nil, err
	}
	c.server.Discovery.Syncz(recorder, request)
	var proxies json.RawMessage
	if err := json.Unmarshal(recorder.Body.Bytes(), &proxies); err != nil {
		return nil, fmt.Errorf("syncz: %w", err)
	}
	return map[string]any{
		"inbound":   c.server.Discovery.InboundUpdates.Load(),
		"committed": c.server.Discovery.CommittedUpdates.Load(),
		"proxies":   proxies,
	}, nil
}

func podOf(r *http.Request) types.NamespacedName {
	query := r.URL.Query()
	return types.NamespacedName{Namespace: query.Get("namespace"), Name: query.Get("pod")}
}

func istioVersion() string {
	text, err := os.ReadFile(istioSrc + "/VERSION")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}
