package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"istio.io/istio/pkg/bootstrap"
	"istio.io/istio/pkg/config/mesh"
)

// proxy is what a waypoint's or a gateway's Deployment tells pilot-agent through its environment.
type proxy struct {
	// "waypoint" or "router".
	Type           string            `json:"type"`
	Name           string            `json:"name"`
	Namespace      string            `json:"namespace"`
	IP             string            `json:"ip"`
	ServiceAccount string            `json:"service_account"`
	Labels         map[string]string `json:"labels"`
	Annotations    map[string]string `json:"annotations"`
	IstioVersion   string            `json:"istio_version"`
	// Folder of the Unix socket XDS, on which pilot-agent serves Envoy.
	ConfigPath string `json:"config_path"`
}

// bootstrapOf writes Envoy's bootstrap with pilot-agent's own code and template.
func bootstrapOf(body string) (any, error) {
	proxy := proxy{}
	if err := json.Unmarshal([]byte(body), &proxy); err != nil {
		return nil, err
	}
	metadata, err := json.Marshal(map[string]any{"LABELS": proxy.Labels, "ANNOTATIONS": proxy.Annotations})
	if err != nil {
		return nil, err
	}
	config := mesh.DefaultProxyConfig()
	config.ConfigPath = proxy.ConfigPath
	discovery := true
	node, err := bootstrap.GetNodeMetaData(bootstrap.MetadataOptions{
		ID: fmt.Sprintf("%s~%s~%s.%s~%s.svc.%s", proxy.Type, proxy.IP, proxy.Name, proxy.Namespace, proxy.Namespace, domain),
		Envs: []string{
			"ISTIO_META_NAMESPACE=" + proxy.Namespace,
			"ISTIO_META_SERVICE_ACCOUNT=" + proxy.ServiceAccount,
			"ISTIO_META_CLUSTER_ID=Kubernetes",
			"ISTIO_META_INTERCEPTION_MODE=REDIRECT",
			"ISTIO_META_MESH_ID=" + domain,
			"ISTIO_META_ISTIO_VERSION=" + proxy.IstioVersion,
			"ISTIO_METAJSON_POD=" + string(metadata),
		},
		InstanceIPs:       []string{proxy.IP},
		ProxyConfig:       config,
		MetadataDiscovery: &discovery,
		EnvoyStatusPort:   15021, EnvoyPrometheusPort: 15090,
		WorkloadIdentitySocketFile: "socket",
	})
	if err != nil {
		return nil, err
	}
	text := bytes.Buffer{}
	template := istioSrc + "/tools/packaging/common/envoy_bootstrap.json"
	if err := bootstrap.New(bootstrap.Config{Node: node}).WriteTo(template, &text); err != nil {
		return nil, err
	}
	if !json.Valid(text.Bytes()) {
		return nil, fmt.Errorf("the bootstrap is no JSON:\n%s", text.String())
	}
	return json.RawMessage(text.Bytes()), nil
}
