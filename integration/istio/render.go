package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	kubeversion "k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"istio.io/istio/pilot/pkg/config/kube/gatewaycommon"
	"istio.io/istio/pilot/pkg/features"
	"istio.io/istio/pilot/pkg/model"
	cluster_ "istio.io/istio/pkg/cluster"
	"istio.io/istio/pkg/config/mesh"
	"istio.io/istio/pkg/config/mesh/meshwatcher"
	"istio.io/istio/pkg/kube"
	"istio.io/istio/pkg/kube/inject"
	"istio.io/istio/pkg/revisions"
)

// chartValues is the part of the chart's values that the templates cannot do without.
const chartValues = `
revision: ""
global:
  hub: docker.io/istio
  tag: lab
  istioNamespace: istio-system
  pilotCertProvider: istiod
  logging: { level: "default:info" }
  proxy: { image: proxyv2, clusterDomain: cluster.local, logLevel: warning, componentLogLevel: "misc:error" }
  waypoint: {}
  multiCluster: { clusterName: "" }
  sts: { servicePort: 0 }
gateways: { seccompProfile: {}, securityContext: {} }
`

// render lets istiod's own deployment controller make a Gateway's Deployment, Service and so on: with the
// chart's templates, and with the overlays of the ConfigMaps among the objects. An overlay that istiod
// refuses leaves nothing, and is an error here.
func (c *cluster) render(text string) (any, error) {
	documents, _, err := c.parse(initialObjects + "\n---\n" + text)
	if err != nil {
		return nil, err
	}
	client := kube.NewFakeClient()
	client.Kube().Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &kubeversion.Info{Major: "1", Minor: "35"}
	for _, document := range documents {
		tracker, resource, err := trackerOf(client, document.object)
		if err != nil {
			return nil, err
		}
		if err := tracker.Create(resource, document.object, document.meta.GetNamespace()); err != nil {
			return nil, err
		}
	}
	collected := struct {
		sync.Mutex
		objects []any
	}{}
	// The fake client cannot apply patches; what is to be applied is the whole object.
	client.Dynamic().(*dynamicfake.FakeDynamicClient).PrependReactor("patch", "*",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			var object any
			if err := yaml.Unmarshal(action.(clienttesting.PatchAction).GetPatch(), &object); err != nil {
				return true, nil, err
			}
			collected.Lock()
			defer collected.Unlock()
			collected.objects = append(collected.objects, object)
			return true, nil, nil
		})
	config, err := injectConfig()
	if err != nil {
		return nil, err
	}
	env := model.NewEnvironment()
	env.Watcher = meshwatcher.NewTestWatcher(mesh.DefaultMeshConfig())
	env.PushContext().InitDone.Store(true)
	stop := make(chan struct{})
	defer close(stop)
	tags := revisions.NewTagWatcher(client, "", systemNamespace)
	go tags.Run(stop)
	controller := gatewaycommon.NewDeploymentController(client, cluster_.ID(features.ClusterName), env,
		func() inject.WebhookConfig { return config }, func(func()) {}, tags, "", systemNamespace)
	client.RunAndWait(stop)
	go controller.Run(stop)
	// The Gateway's own patch (its controller version) comes first, the Service last but for what overlays add.
	deadline := time.Now().Add(10 * time.Second)
	for {
		collected.Lock()
		objects := append([]any(nil), collected.objects...)
		collected.Unlock()
		if hasKind(objects, "Service") {
			return objects, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("istiod's controller made no Service; it made %v", objects)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func injectConfig() (inject.WebhookConfig, error) {
	values, err := inject.NewValuesConfig(chartValues)
	if err != nil {
		return inject.WebhookConfig{}, err
	}
	raw := inject.RawTemplates{}
	for _, name := range []string{"kube-gateway", "waypoint"} {
		text, err := os.ReadFile(istioSrc + "/manifests/charts/istio-control/istio-discovery/files/" + name + ".yaml")
		if err != nil {
			return inject.WebhookConfig{}, err
		}
		raw[name] = string(text)
	}
	templates, err := inject.ParseTemplates(raw)
	return inject.WebhookConfig{Templates: templates, Values: values, MeshConfig: mesh.DefaultMeshConfig()}, err
}

func hasKind(objects []any, kind string) bool {
	for _, object := range objects {
		if fields, ok := object.(map[string]any); ok && fields["kind"] == kind {
			return true
		}
	}
	return false
}
