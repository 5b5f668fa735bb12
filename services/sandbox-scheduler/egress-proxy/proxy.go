package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// via marks this proxy's answers, so that they can be told from those of whatever else sits on the way.
const via = "1.1 longshore-egress"

type resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

type proxy struct {
	options  options
	resolver resolver
	log      *slog.Logger
	refusals *refusalLog
	forward  *httputil.ReverseProxy
}

// refusal is an answer to something that the rules do not allow.
type refusal struct{ why string }

func (r refusal) Error() string { return r.why }

func newProxy(o options, names resolver, log *slog.Logger) *proxy {
	p := &proxy{options: o, resolver: names, log: log, refusals: &refusalLog{log: log}}
	p.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.Host = r.Out.URL.Host },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
				host, port, err := net.SplitHostPort(address)
				if err != nil {
					return nil, err
				}
				return p.dial(ctx, normalHost(host), port)
			},
			DisableCompression:    true,
			MaxIdleConns:          64,
			IdleConnTimeout:       time.Minute,
			ResponseHeaderTimeout: o.idleTimeout,
		},
		ModifyResponse: func(r *http.Response) error { r.Header.Add("Via", via); return nil },
		FlushInterval:  -1,
		ErrorHandler:   p.fail,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return p
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodConnect:
		p.connect(w, r)
	case r.URL.IsAbs():
		p.plain(w, r)
	case r.URL.Path == "/healthz":
		fmt.Fprintln(w, "ok")
	default:
		http.Error(w, "this is a forward proxy: send CONNECT host:port or an absolute URL", http.StatusBadRequest)
	}
}

func (p *proxy) plain(w http.ResponseWriter, r *http.Request) {
	port := r.URL.Port()
	if port == "" {
		port = "80"
	}
	if r.URL.Scheme != "http" {
		p.fail(w, r, refusal{fmt.Sprintf("scheme %q; https goes through CONNECT", r.URL.Scheme)})
		return
	}
	if err := p.check(normalHost(r.URL.Hostname()), port, p.options.httpPorts); err != nil {
		p.fail(w, r, err)
		return
	}
	// No protocol switch: what follows one could not be told from anything else.
	r.Header.Del("Upgrade")
	p.forward.ServeHTTP(w, r)
}

func (p *proxy) connect(w http.ResponseWriter, r *http.Request) {
	host, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		p.fail(w, r, refusal{"CONNECT needs host:port"})
		return
	}
	host = normalHost(host)
	if err := p.check(host, port, p.options.tlsPorts); err != nil {
		p.fail(w, r, err)
		return
	}
	upstream, err := p.dial(r.Context(), host, port)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	defer upstream.Close()
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.fail(w, r, err)
		return
	}
	defer client.Close()
	_ = client.SetDeadline(time.Now().Add(p.options.helloTimeout))
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	hello, err := readHello(r.Context(), buffered.Reader, host)
	if err != nil {
		p.refusals.refuse(clientOf(r.RemoteAddr), r.Host, err.Error())
		return
	}
	_ = client.SetDeadline(time.Time{})
	_ = upstream.SetWriteDeadline(time.Now().Add(p.options.idleTimeout))
	if _, err := upstream.Write(hello); err != nil {
		return
	}
	tunnel(client, buffered.Reader, upstream, p.options.idleTimeout)
}

func (p *proxy) check(host, port string, allowed ports) error {
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || !allowed[uint16(number)] {
		return refusal{fmt.Sprintf("port %s is not open", port)}
	}
	if !p.options.hosts.allows(host) {
		return refusal{fmt.Sprintf("host %q is not on this sandbox's allowlist", host)}
	}
	return nil
}

// dial resolves once and connects to an address that it checked, so that a second answer cannot lead elsewhere.
func (p *proxy) dial(ctx context.Context, host, port string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.options.connectTimeout)
	defer cancel()
	// The final dot keeps search domains, that is the cluster's own names, out.
	found, err := p.resolver.LookupNetIP(ctx, "ip", host+".")
	if err != nil {
		return nil, err
	}
	permitted := 0
	var last error
	for _, address := range found {
		if !p.options.addresses.permits(address) {
			continue
		}
		permitted++
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(address.Unmap().String(), port))
		if err == nil {
			return conn, nil
		}
		last = err
	}
	if permitted == 0 {
		return nil, refusal{fmt.Sprintf("host %q resolves to no address that sandboxes may reach", host)}
	}
	return nil, last
}

func (p *proxy) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusBadGateway
	var refused refusal
	if errors.As(err, &refused) {
		status = http.StatusForbidden
		p.refusals.refuse(clientOf(r.RemoteAddr), r.Host, refused.why)
	}
	w.Header().Set("Connection", "close")
	w.Header().Set("Via", via)
	http.Error(w, "longshore egress proxy: "+err.Error(), status)
}

// tunnel copies both ways until both ended, one broke, or nothing moved for idle.
func tunnel(client net.Conn, fromClient io.Reader, upstream net.Conn, idle time.Duration) {
	touch := func() {
		deadline := time.Now().Add(idle)
		_ = client.SetDeadline(deadline)
		_ = upstream.SetDeadline(deadline)
	}
	touch()
	var both sync.WaitGroup
	copyTo := func(to net.Conn, from io.Reader) {
		if _, err := io.Copy(to, &touchingReader{from, touch}); err != nil {
			_ = client.Close()
			_ = upstream.Close()
			return
		}
		_ = closeWrite(to)
	}
	both.Go(func() { copyTo(upstream, fromClient) })
	both.Go(func() { copyTo(client, upstream) })
	both.Wait()
}

type touchingReader struct {
	io.Reader
	touch func()
}

func (t *touchingReader) Read(data []byte) (int, error) {
	count, err := t.Reader.Read(data)
	if count > 0 {
		t.touch()
	}
	return count, err
}

func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return conn.Close()
}
