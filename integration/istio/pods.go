package main

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// step is one thing that happens to a Pod.
type step string

const (
	// Its readiness probe fails, or succeeds again.
	stepUnready step = "unready"
	stepReady   step = "ready"
	// Somebody deleted it: it has a deletion timestamp, still answers, and its endpoint is terminating.
	stepTerminate step = "terminate"
	// The kubelet is done with it.
	stepGone step = "gone"
)

// step takes a Pod through one step and writes the EndpointSlices, as the API server's clients would see it.
func (c *cluster) step(name types.NamespacedName, step step) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stepLocked(name, step)
}

func (c *cluster) stepLocked(name types.NamespacedName, step step) error {
	current, ok := c.pods[name]
	if !ok {
		return fmt.Errorf("no pod %s", name)
	}
	pod := current.DeepCopy()
	switch step {
	case stepReady:
		setReady(pod, corev1.ConditionTrue)
	case stepUnready:
		setReady(pod, corev1.ConditionFalse)
	case stepTerminate:
		now, grace := metav1.NewTime(time.Now()), int64(30)
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &grace
	case stepGone:
		return c.remove(document{object: pod, meta: pod})
	default:
		return fmt.Errorf("no step %q", step)
	}
	return c.put(document{object: pod, meta: pod})
}

// replace takes a Pod through its end and another one, described by text, through its beginning, all in a
// row: within istiod's debounce this is one change.
func (c *cluster) replace(name types.NamespacedName, text string) error {
	documents, _, err := c.parse(text)
	if err != nil {
		return err
	}
	if len(documents) != 1 {
		return fmt.Errorf("%d objects instead of one Pod", len(documents))
	}
	successor, ok := documents[0].object.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("%T is no Pod", documents[0].object)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, step := range []step{stepTerminate, stepGone} {
		if err := c.stepLocked(name, step); err != nil {
			return err
		}
	}
	setReady(successor, corev1.ConditionFalse)
	if err := c.put(documents[0]); err != nil {
		return err
	}
	return c.stepLocked(key(successor), stepReady)
}

func setReady(pod *corev1.Pod, status corev1.ConditionStatus) {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			pod.Status.Conditions[i].Status = status
			return
		}
	}
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: status})
}
