package main

import (
	"fmt"
	"strings"
	"time"
)

const (
	isolationLimit = 60 * time.Second
	isolationPause = 50 * time.Millisecond
	canaryTimeout  = 300 * time.Millisecond
)

// awaitIsolation waits until every canary (host:port, comma separated) is out of reach, twice in a row.
//
// A network plugin applies a pod's policies some time after its start; seconds, when many start at once. Until then a
// task could open connections that outlive the policies. So nothing of the task runs before what no sandbox may reach
// is seen to be refused from inside the pod.
func awaitIsolation(canaries string, limit time.Duration) error {
	if canaries == "" {
		return nil
	}
	targets, err := probeTargets(strings.Split(canaries, ","))
	if err != nil {
		return fmt.Errorf("%sCANARIES: %w", prefix, err)
	}
	start := time.Now()
	for refused := 0; refused < 2; time.Sleep(isolationPause) {
		refused++
		for _, one := range tryAll(targets, canaryTimeout, start) {
			if !one.Open {
				continue
			}
			refused = 0
			if time.Since(start) > limit {
				return fmt.Errorf("network policies are not in force after %s: %s can be reached", limit, one.Target)
			}
		}
	}
	return nil
}
