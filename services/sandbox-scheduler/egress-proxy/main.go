// Command egress-proxy lets the sandboxes of one allowlist reach the hosts that it names, and nothing else.
//
// It runs in a pod of its own, is set up by its flags alone, and refuses what no flag allows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type options struct {
	listen         string
	hosts          hostRules
	addresses      addressRules
	tlsPorts       ports
	httpPorts      ports
	limits         limits
	connectTimeout time.Duration
	helloTimeout   time.Duration
	idleTimeout    time.Duration
}

type ports map[uint16]bool

func (p ports) String() string { return fmt.Sprint(map[uint16]bool(p)) }

func (p ports) Set(text string) error {
	for _, part := range strings.Split(text, ",") {
		port, err := strconv.ParseUint(part, 10, 16)
		if err != nil || port == 0 {
			return fmt.Errorf("%q is no port", part)
		}
		p[uint16(port)] = true
	}
	return nil
}

func parse(name string, arguments []string) (options, error) {
	o := options{tlsPorts: ports{}, httpPorts: ports{}}
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.StringVar(&o.listen, "listen", ":3128", "address to listen on")
	set.Var(&o.hosts, "allow-host", "host that may be reached, a.example or *.example; may be repeated")
	set.Var(&o.addresses, "addresses", "allow:CIDR,deny:CIDR,...; the longest matching prefix decides, none refuses")
	set.Var(o.tlsPorts, "tls-ports", "ports that CONNECT may name, comma separated")
	set.Var(o.httpPorts, "http-ports", "ports of plain http URLs, comma separated")
	set.IntVar(&o.limits.total, "max-connections", 2048, "client connections at a time")
	set.IntVar(&o.limits.perClient, "max-connections-per-client", 128, "client connections of one address at a time")
	set.DurationVar(&o.connectTimeout, "connect-timeout", 10*time.Second, "longest name look-up and connect")
	set.DurationVar(&o.helloTimeout, "hello-timeout", 10*time.Second, "longest wait for request headers and for a TLS ClientHello")
	set.DurationVar(&o.idleTimeout, "idle-timeout", 5*time.Minute, "a tunnel without traffic ends after this")
	if err := set.Parse(arguments); err != nil {
		return o, err
	}
	switch {
	case set.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", set.Arg(0))
	case len(o.hosts.exact)+len(o.hosts.suffixes) == 0:
		return o, errors.New("no -allow-host: nothing could be reached")
	case len(o.addresses) == 0:
		return o, errors.New("no -addresses: every address would be refused")
	case len(o.tlsPorts)+len(o.httpPorts) == 0:
		return o, errors.New("neither -tls-ports nor -http-ports: nothing could be reached")
	case o.limits.total < 1 || o.limits.perClient < 1:
		return o, errors.New("-max-connections and -max-connections-per-client must be at least 1")
	case o.connectTimeout <= 0 || o.helloTimeout <= 0 || o.idleTimeout <= 0:
		return o, errors.New("timeouts must be positive")
	}
	return o, nil
}

func serve(ctx context.Context, listener net.Listener, o options, log *slog.Logger) error {
	proxy := newProxy(o, net.DefaultResolver, log)
	server := &http.Server{
		Handler:           proxy,
		ReadHeaderTimeout: o.helloTimeout,
		IdleTimeout:       o.idleTimeout,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(newLimitListener(listener, o.limits, proxy.refusals)) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return server.Close()
	}
}

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	o, err := parse(os.Args[0], os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "egress-proxy: %v\n", err)
		os.Exit(2)
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		fmt.Fprintf(os.Stderr, "egress-proxy: %v\n", err)
		os.Exit(1)
	}
	log.Info("listening", "address", listener.Addr().String(), "hosts", o.hosts.String())
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	if err := serve(ctx, listener, o, log); err != nil && !errors.Is(err, http.ErrServerClosed) {
		log.Error("stopped", "error", err.Error())
		os.Exit(1)
	}
}
