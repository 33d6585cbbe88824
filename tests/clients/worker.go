// As worker.py: holds the lease `job`, and says in a log what it does. In the place of a lock it has an address that is
// free only when whoever listened there has ended or closed it.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	tenure "github.com/tenure-rs/tenure/clients/go"
)

func say(format string, values ...any) {
	log, err := os.OpenFile("log", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	defer log.Close()
	fmt.Fprintf(log, format+"\n", values...)
}

func work(isDeaf bool) error {
	lead, err := tenure.Acquire(context.Background(), "job", nil)
	if err != nil {
		return err
	}
	defer lead.Release()
	here, _ := os.Getwd()
	probe, err := net.Listen("unix", "@"+here)
	if err != nil {
		say("overlap %d", lead.Token.Term)
	} else {
		defer probe.Close()
	}
	say("start %d %d", lead.Token.Term, os.Getpid())
	for lead.Held() || isDeaf {
		time.Sleep(5 * time.Millisecond)
	}
	<-lead.Context().Done()
	say("end %d", lead.Token.Term)
	return context.Cause(lead.Context())
}

func main() {
	if os.Args[1] == "deaf" {
		signal.Ignore(syscall.SIGTERM)
	}
	for {
		err := work(os.Args[1] == "deaf")
		var lost *tenure.Lost
		var refused *tenure.Error
		switch {
		case errors.As(err, &lost):
			say("lost %s", lost.Reason)
		case errors.As(err, &refused):
			say("error %s %s", refused.Code, refused.Message)
			time.Sleep(50 * time.Millisecond)
		default:
			os.Exit(3)
		}
	}
}
