// Package tenure asks `tenure with` for leases: one process among many leads.
//
//	lead, err := tenure.Acquire(ctx, "report", nil) // waits until this process leads
//	if err != nil { … }
//	defer lead.Release()
//	for lead.Held() { // a local clock read
//		write(lead.Context(), lead.Token) // cancelled at a loss; compare the token where it writes
//	}
//
// `tenure with --store URL -- ./app` starts the program and sets TENURE_SOCKET. A lease belongs to this process: it
// is given back when it is released or the process ends. A process that goes on for longer than its stop budget after
// a lease was lost is killed.
package tenure

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Error is what tenure refused: Code is a stable word, Message a sentence.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// IsHeld says whether an error means that another holds the lease.
func IsHeld(err error) bool { return hasCode(err, "held") }

func hasCode(err error, code string) bool {
	var refused *Error
	return errors.As(err, &refused) && refused.Code == code
}

// Lost is the cause (context.Cause) of a lease's context that is cancelled.
type Lost struct{ Name, Reason string }

func (l *Lost) Error() string {
	return fmt.Sprintf("the lease %s is not held any more: %s", l.Name, l.Reason)
}

// Token is the fencing token: compared as two numbers, the term first.
type Token struct {
	Term uint64 `json:"term"`
	Step uint64 `json:"step"`
}

// Options of Acquire.
type Options struct {
	// Try asks once, instead of waiting until the context is done.
	Try bool
	// Note is written into the lease's record in the same step; nil: the old note stays.
	Note *string
}

// Lease is a lease that this process holds.
type Lease struct {
	ID, Name string
	Token    Token
	// Note stood in the record when the lease was won.
	Note string

	deadline atomic.Int64
	context  context.Context
	end      context.CancelCauseFunc
	released atomic.Bool
}

// Leader is who holds a lease.
type Leader struct {
	Name  string `json:"name"`
	Owner string `json:"owner"`
	Token Token  `json:"token"`
	// PID is set if it is a process of this command.
	PID *int `json:"pid"`
}

type told struct {
	ID       string  `json:"id"`
	Name     string  `json:"name"`
	Token    Token   `json:"token"`
	Deadline int64   `json:"deadline_ns"`
	Note     *string `json:"note"`
	Reason   *string `json:"reason"`
}

// Acquire waits until this process holds the lease, or the context is done.
func Acquire(ctx context.Context, name string, options *Options) (*Lease, error) {
	var key [16]byte
	if _, err := rand.Read(key[:]); err != nil {
		return nil, err
	}
	// With its key a request can be repeated if its answer got lost.
	question := map[string]any{"name": name, "key": hex.EncodeToString(key[:])}
	if options != nil && options.Try {
		question["wait_ms"] = 0
	}
	if options != nil && options.Note != nil {
		question["note"] = *options.Note
	}
	var first told
	err := call(ctx, "POST", "/v1/leases", question, &first)
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
		err = call(ctx, "POST", "/v1/leases", question, &first)
	}
	if err != nil {
		return nil, err
	}
	lease := &Lease{ID: first.ID, Name: first.Name, Token: first.Token}
	if first.Note != nil {
		lease.Note = *first.Note
	}
	lease.deadline.Store(first.Deadline)
	lease.context, lease.end = context.WithCancelCause(context.WithoutCancel(ctx))
	go lease.follow()
	return lease, nil
}

// Held says whether nobody else can hold the lease now: a clock read, no lock, no I/O.
func (l *Lease) Held() bool { return bootTime() < l.deadline.Load() }

// Context is cancelled when the lease is lost or given back; its cause is a *Lost.
func (l *Lease) Context() context.Context { return l.context }

// WriteNote replaces the note in the lease's record; it returns when it stands.
func (l *Lease) WriteNote(ctx context.Context, note string) error {
	return call(ctx, "PUT", "/v1/leases/"+l.ID+"/note", map[string]string{"note": note}, nil)
}

// Release gives the lease back: what it guarded has ended.
func (l *Lease) Release() error {
	if l.released.Swap(true) {
		return nil
	}
	l.lose("released")
	err := call(context.Background(), "DELETE", "/v1/leases/"+l.ID, nil, nil)
	if hasCode(err, "no_lease") || isGone(err) {
		return nil
	}
	return err
}

func (l *Lease) lose(reason string) {
	l.deadline.Store(0)
	l.end(&Lost{l.Name, reason})
}

func (l *Lease) follow() {
	for l.context.Err() == nil {
		err := l.readEvents()
		switch {
		case hasCode(err, "no_lease"):
			l.lose("released")
		case !l.Held():
			l.lose("expired")
		default:
			time.Sleep(again)
		}
	}
}

func (l *Lease) readEvents() error {
	ctx, stop := context.WithCancel(l.context)
	defer stop()
	// tenure may be stopped, and then says nothing.
	go func() {
		for ctx.Err() == nil && l.Held() {
			time.Sleep(again)
		}
		stop()
	}()
	response, err := open(ctx, "GET", "/v1/leases/"+l.ID+"/events", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		return refusal(response)
	}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		var news struct {
			Event string `json:"event"`
			Lease told   `json:"lease"`
		}
		if err := json.Unmarshal(lines.Bytes(), &news); err != nil {
			return err
		}
		if news.Event != "held" && news.Event != "renewed" {
			reason := "released"
			if news.Lease.Reason != nil {
				reason = *news.Lease.Reason
			}
			l.lose(reason)
			return nil
		}
		// A lease that was lost or given back meanwhile stays so.
		if before := l.deadline.Load(); before != 0 {
			l.deadline.CompareAndSwap(before, news.Lease.Deadline)
		}
	}
	return lines.Err()
}

// WhoLeads says who holds a lease; nil: nobody.
func WhoLeads(ctx context.Context, name string) (*Leader, error) {
	leader := &Leader{}
	err := call(ctx, "GET", "/v1/leader/"+name, nil, leader)
	if hasCode(err, "nobody") {
		return nil, nil
	}
	return leader, err
}

func call(ctx context.Context, method, path string, body, answer any) error {
	response, err := open(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		return refusal(response)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

func refusal(response *http.Response) error {
	var refused struct {
		Error Error `json:"error"`
	}
	if err := json.NewDecoder(response.Body).Decode(&refused); err != nil {
		return err
	}
	return &refused.Error
}

func open(ctx context.Context, method, path string, body any) (*http.Response, error) {
	socket := os.Getenv("TENURE_SOCKET")
	if socket == "" {
		return nil, &Error{"no_socket", "TENURE_SOCKET is not set: start this program by `tenure with --store URL -- …`"}
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://tenure"+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}
	return transport.RoundTrip(request)
}

func isGone(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNRESET)
}

func bootTime() int64 {
	const clockBoottime = 7
	var now syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano()
}

// How long to pause before events are asked for again after a connection broke.
const again = 50 * time.Millisecond
