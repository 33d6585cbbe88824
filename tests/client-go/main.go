// Holds leases with client-go's leader election, to be measured beside Tenure's.
//
// Each lease has an elector, a client and connections of its own, and the timing that client-go
// recommends. Standard output has one line of JSON per event.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// What client-go recommends, and the components of Kubernetes use.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// event is one line of the output.
type event struct {
	Lease string `json:"lease"`
	// Event is "started" or "lost".
	Event string `json:"event"`
	// At is when, in nanoseconds since 1970.
	At int64 `json:"at"`
}

func main() {
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "path of the kubeconfig")
	leases := flag.Int("leases", 10, "how many leases to hold")
	prefix := flag.String("prefix", "client-go", "what the names of the leases begin with")
	flag.Parse()
	if err := run(*kubeconfig, *leases, *prefix); err != nil {
		fmt.Fprintln(os.Stderr, "client-go:", err)
		os.Exit(1)
	}
}

// run holds the leases until the process is told to end.
func run(kubeconfig string, leases int, prefix string) error {
	loading := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	deferred := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(loading, nil)
	config, err := deferred.ClientConfig()
	if err != nil {
		return err
	}
	namespace, _, err := deferred.Namespace()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ended := make(chan error, leases)
	for i := range leases {
		go func() { ended <- hold(ctx, config, namespace, fmt.Sprintf("%s-%d", prefix, i)) }()
	}
	for range leases {
		if err := <-ended; err != nil {
			return err
		}
	}
	return nil
}

// hold contends for one lease, and again after each loss.
func hold(ctx context.Context, config *rest.Config, namespace, name string) error {
	// Electors that began together would renew together; those of different programs do not.
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(rand.N(retryPeriod)):
	}
	// Clients of equal configurations share connections, as those of different programs cannot: a
	// dialer of its own, equal to client-go's, gives each client its own.
	own := rest.CopyConfig(config)
	own.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		return err
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: fmt.Sprintf("%s-%d", name, os.Getpid())},
	}
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock:          lock,
			LeaseDuration: leaseDuration,
			RenewDeadline: renewDeadline,
			RetryPeriod:   retryPeriod,
			Name:          name,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { report(name, "started") },
				OnStoppedLeading: func() {
					if ctx.Err() == nil {
						report(name, "lost")
					}
				},
			},
		})
		if err != nil {
			return err
		}
		elector.Run(ctx)
	}
	return nil
}

var output sync.Mutex

func report(lease, kind string) {
	line := event{Lease: lease, Event: kind, At: time.Now().UnixNano()}
	output.Lock()
	defer output.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(line)
}
