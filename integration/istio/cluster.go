package main

import (
	"fmt"
	"sort"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"istio.io/istio/pilot/pkg/config/kube/crd"
	"istio.io/istio/pilot/test/xds"
	"istio.io/istio/pkg/config"
	crdvalidation "istio.io/istio/pkg/config/crd"
	"istio.io/istio/pkg/config/schema/gvk"
	"istio.io/istio/pkg/config/validation/envoyfilter"
	"istio.io/istio/pkg/kube"
	"istio.io/istio/pkg/test/util/yml"
)

// cluster is what an API server and the controllers that istiod relies on would be: it keeps Pods and
// Services, writes their EndpointSlices, and hands everything to istiod's clients.
type cluster struct {
	server *xds.FakeDiscoveryServer
	crds   *crdvalidation.Validator

	mu       sync.Mutex
	pods     map[types.NamespacedName]*corev1.Pod
	services map[types.NamespacedName]*corev1.Service
	serial   int
}

// tracked is what all of client-go's fake clients are.
type tracked interface {
	Tracker() clienttesting.ObjectTracker
}

func newCluster(server *xds.FakeDiscoveryServer) (*cluster, error) {
	crds, err := crdvalidation.NewValidatorFromFilesWithOptions([]string{
		istioSrc + "/manifests/charts/base/files/crd-all.gen.yaml",
		istioSrc + "/tests/integration/pilot/testdata/gateway-api-crd.yaml",
	}, crdvalidation.WithoutCRDValidation())
	if err != nil {
		return nil, fmt.Errorf("CRDs: %w", err)
	}
	return &cluster{
		server:   server,
		crds:     crds,
		pods:     map[types.NamespacedName]*corev1.Pod{},
		services: map[types.NamespacedName]*corev1.Service{},
	}, nil
}

// document is one YAML document: an object of Kubernetes, and for Istio's own kinds its configuration.
type document struct {
	object runtime.Object
	meta   metav1.Object
	config *config.Config
}

// parse reads documents and refuses what an API server with Istio's CRDs and webhook would refuse. The
// warnings are the webhook's.
func (c *cluster) parse(text string) (documents []document, warnings []string, err error) {
	for _, part := range yml.SplitString(text) {
		object, kind, err := strictCodecs.UniversalDeserializer().Decode([]byte(part), nil, nil)
		if err != nil {
			return nil, nil, fmt.Errorf("%w\n%s", err, part)
		}
		accessor, err := meta.Accessor(object)
		if err != nil {
			return nil, nil, err
		}
		if accessor.GetNamespace() == "" && !clusterScoped[kind.Kind] {
			accessor.SetNamespace("default")
		}
		document := document{object: object, meta: accessor}
		ours := strings.HasSuffix(kind.Group, ".istio.io")
		if ours || kind.Group == "gateway.networking.k8s.io" {
			if err := c.crds.ValidateCustomResourceYAML(part, nil); err != nil {
				return nil, nil, fmt.Errorf("schema of %s %s: %w", kind.Kind, accessor.GetName(), err)
			}
		}
		if ours {
			parsed, _, err := crd.ParseInputs(part)
			if err != nil || len(parsed) != 1 {
				return nil, nil, fmt.Errorf("%s %s: %d configurations: %v", kind.Kind, accessor.GetName(), len(parsed), err)
			}
			document.config = &parsed[0]
			document.config.Namespace = accessor.GetNamespace()
		}
		if kind.Kind == "EnvoyFilter" {
			warning, err := envoyfilter.ValidateEnvoyFilter(*document.config)
			if err != nil {
				return nil, nil, fmt.Errorf("EnvoyFilter %s: %w", accessor.GetName(), err)
			}
			if warning != nil {
				warnings = append(warnings, warning.Error())
			}
		}
		documents = append(documents, document)
	}
	return documents, warnings, nil
}

// apply creates or replaces objects, in the order of the text.
func (c *cluster) apply(text string) ([]string, error) {
	documents, warnings, err := c.parse(text)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, document := range documents {
		if err := c.put(document); err != nil {
			return nil, err
		}
	}
	return warnings, nil
}

// delete takes objects away; only their kinds and names matter.
func (c *cluster) delete(text string) error {
	documents, _, err := c.parse(text)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, document := range documents {
		if err := c.remove(document); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) put(document document) error {
	c.serial++
	if document.meta.GetUID() == "" {
		document.meta.SetUID(types.UID(fmt.Sprintf("uid-%d", c.serial)))
	}
	document.meta.SetResourceVersion(fmt.Sprint(c.serial))
	if document.config != nil {
		if err := c.putConfig(*document.config); err != nil {
			return err
		}
	}
	if err := c.track(document.object, document.meta); err != nil {
		return err
	}
	name := key(document.meta)
	switch object := document.object.(type) {
	case *corev1.Pod:
		c.pods[name] = object
		return c.reconcile(name.Namespace)
	case *corev1.Service:
		c.services[name] = object
		return c.reconcile(name.Namespace)
	}
	return nil
}

func (c *cluster) remove(document document) error {
	name := key(document.meta)
	if document.config != nil {
		if err := c.server.Store().Delete(document.config.GroupVersionKind, name.Name, name.Namespace, nil); err != nil {
			return err
		}
	}
	if err := c.untrack(document.object, name); err != nil {
		return err
	}
	switch document.object.(type) {
	case *corev1.Pod:
		delete(c.pods, name)
		return c.reconcile(name.Namespace)
	case *corev1.Service:
		delete(c.services, name)
		// Kubernetes' garbage collector takes the slice, for its owner is gone.
		return c.untrack(slice(name, nil, nil), types.NamespacedName{Namespace: name.Namespace, Name: sliceName(name)})
	}
	return nil
}

func (c *cluster) putConfig(wanted config.Config) error {
	store := c.server.Store()
	current := store.Get(wanted.GroupVersionKind, wanted.Name, wanted.Namespace)
	var err error
	if current == nil {
		_, err = store.Create(wanted)
	} else {
		wanted.ResourceVersion = current.ResourceVersion
		_, err = store.Update(wanted)
	}
	return err
}

// reconcile does what Kubernetes' endpoint slice controller does, at once.
func (c *cluster) reconcile(namespace string) error {
	for name, service := range c.services {
		if name.Namespace != namespace || len(service.Spec.Selector) == 0 {
			continue
		}
		var pods []*corev1.Pod
		for podName, pod := range c.pods {
			if podName.Namespace == namespace && pod.Status.PodIP != "" && selects(service.Spec.Selector, pod.Labels) {
				pods = append(pods, pod)
			}
		}
		sort.Slice(pods, func(i, j int) bool { return pods[i].Name < pods[j].Name })
		wanted := slice(name, service, pods)
		c.serial++
		wanted.ResourceVersion = fmt.Sprint(c.serial)
		if err := c.track(wanted, wanted); err != nil {
			return err
		}
	}
	return nil
}

func slice(name types.NamespacedName, service *corev1.Service, pods []*corev1.Pod) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Name:      sliceName(name),
			Namespace: name.Namespace,
			Labels:    map[string]string{discoveryv1.LabelServiceName: name.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if service != nil {
		for i := range service.Spec.Ports {
			port := service.Spec.Ports[i]
			target := port.TargetPort.IntVal
			if target == 0 {
				target = port.Port
			}
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{
				Name: &port.Name, Port: &target, Protocol: &port.Protocol, AppProtocol: port.AppProtocol,
			})
		}
	}
	for _, pod := range pods {
		serving, terminating := isReady(pod), pod.DeletionTimestamp != nil
		ready := serving && !terminating
		if service.Spec.PublishNotReadyAddresses {
			ready = true
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{pod.Status.PodIP},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			NodeName:   &pod.Spec.NodeName,
		})
	}
	return slice
}

// track hands an object to the fake client of its API group, whose informers tell istiod of it.
func (c *cluster) track(object runtime.Object, accessor metav1.Object) error {
	tracker, resource, err := c.tracker(object)
	if err != nil {
		return err
	}
	// The informers share what they are given.
	copied := object.DeepCopyObject()
	err = tracker.Update(resource, copied, accessor.GetNamespace())
	if kerrors.IsNotFound(err) {
		err = tracker.Create(resource, copied, accessor.GetNamespace())
	}
	return err
}

func (c *cluster) untrack(object runtime.Object, name types.NamespacedName) error {
	tracker, resource, err := c.tracker(object)
	if err != nil {
		return err
	}
	return tracker.Delete(resource, name.Namespace, name.Name)
}

func (c *cluster) tracker(object runtime.Object) (clienttesting.ObjectTracker, groupVersionResource, error) {
	return trackerOf(c.server.KubeClient(), object)
}

func trackerOf(client kube.Client, object runtime.Object) (clienttesting.ObjectTracker, groupVersionResource, error) {
	kind := object.GetObjectKind().GroupVersionKind()
	// The guess makes "gatewaies" of a Gateway; Istio knows the names of all that it watches.
	resource, known := gvk.ToGVR(config.FromKubernetesGVK(kind))
	if !known {
		resource, _ = meta.UnsafeGuessKindToResource(kind)
	}
	var fake any = client.Kube()
	switch {
	case strings.HasSuffix(kind.Group, ".istio.io"):
		fake = client.Istio()
	case kind.Group == "gateway.networking.k8s.io":
		fake = client.GatewayAPI()
	}
	clientset, ok := fake.(tracked)
	if !ok {
		return nil, resource, fmt.Errorf("%T is no fake client", fake)
	}
	return clientset.Tracker(), resource, nil
}

func selects(selector, labels map[string]string) bool {
	for name, value := range selector {
		if labels[name] != value {
			return false
		}
	}
	return true
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func key(accessor metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: accessor.GetNamespace(), Name: accessor.GetName()}
}

func sliceName(service types.NamespacedName) string { return service.Name + "-slice" }
