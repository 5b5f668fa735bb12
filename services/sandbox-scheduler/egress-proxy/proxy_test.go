package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// names is a name server: each look-up of a name takes the next of its answers, the last one stays.
type names struct {
	mu      sync.Mutex
	answers map[string][]string
	asked   []string
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, host)
	found := n.answers[strings.TrimSuffix(host, ".")]
	if len(found) == 0 {
		return nil, errors.New("no such host")
	}
	if len(found) > 1 {
		n.answers[strings.TrimSuffix(host, ".")] = found[1:]
	}
	return []netip.Addr{netip.MustParseAddr(found[0])}, nil
}

type world struct {
	proxy *url.URL
	log   *lockedBuffer
	names *names
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(data)
}

func (b *lockedBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.String()
}

func portOf(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// start serves a.example from 127.0.0.1, which the rules allow; 127.0.0.2 stands for everything private.
func start(t *testing.T, upstream string, change func(*options)) *world {
	t.Helper()
	port := portOf(t, upstream)
	o, err := parse("proxy", []string{
		"-allow-host", "a.example", "-allow-host", "rebinding.example", "-allow-host", "*.wild.example",
		"-addresses", "deny:127.0.0.0/8,allow:127.0.0.1/32", "-tls-ports", port, "-http-ports", port,
		"-hello-timeout", "2s", "-connect-timeout", "2s",
	})
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&o)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		proxy: &url.URL{Scheme: "http", Host: listener.Addr().String()},
		log:   &lockedBuffer{},
		names: &names{answers: map[string][]string{
			"a.example":           {"127.0.0.1"},
			"x.wild.example":      {"127.0.0.1"},
			"inside.wild.example": {"127.0.0.2"},
			"rebinding.example":   {"127.0.0.1", "127.0.0.2"},
		}},
	}
	handler := newProxy(o, w.names, slog.New(slog.NewJSONHandler(w.log, nil)))
	server := &http.Server{Handler: handler, ReadHeaderTimeout: o.helloTimeout}
	go func() { _ = server.Serve(newLimitListener(listener, o.limits, handler.refusals)) }()
	t.Cleanup(func() { _ = server.Close() })
	return w
}

func (w *world) client(roots *x509.CertPool, serverName string) *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		Proxy:             http.ProxyURL(w.proxy),
		TLSClientConfig:   &tls.Config{RootCAs: roots, ServerName: serverName, InsecureSkipVerify: serverName != ""},
		DisableKeepAlives: true,
	}}
}

func plainUpstream(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "host=%s path=%s proxy-header=%q", r.Host, r.URL.Path, r.Header.Get("Proxy-Authorization"))
	}))
	t.Cleanup(server.Close)
	return server
}

func tlsUpstream(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "tls host=%s", r.Host)
	}))
	t.Cleanup(server.Close)
	return server
}

func get(t *testing.T, client *http.Client, address string) (int, string) {
	t.Helper()
	response, err := client.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if plain := strings.HasPrefix(address, "http:"); plain != (response.Header.Get("Via") == via) {
		t.Errorf("%s: Via is %q", address, response.Header.Get("Via"))
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestPlainRequests(t *testing.T) {
	upstream := plainUpstream(t)
	w := start(t, upstream.Listener.Addr().String(), nil)
	port := portOf(t, upstream.Listener.Addr().String())
	for _, row := range []struct {
		url    string
		status int
		body   string
	}{
		{"http://a.example:" + port + "/x", 200, "host=a.example:" + port + " path=/x"},
		{"http://A.Example.:" + port + "/x", 200, "path=/x"},
		{"http://x.wild.example:" + port + "/", 200, "path=/"},
		{"http://other.example:" + port + "/", 403, "not on this sandbox's allowlist"},
		{"http://wild.example:" + port + "/", 403, "not on this sandbox's allowlist"},
		{"http://127.0.0.1:" + port + "/", 403, "not on this sandbox's allowlist"},
		{"http://a.example/", 403, "port 80 is not open"},
		{"http://a.example:22/", 403, "port 22 is not open"},
		{"http://inside.wild.example:" + port + "/", 403, "no address that sandboxes may reach"},
	} {
		status, body := get(t, w.client(nil, ""), row.url)
		if status != row.status || !strings.Contains(body, row.body) {
			t.Errorf("%s: %d %q, want %d %q", row.url, status, body, row.status, row.body)
		}
	}
	if logged := w.log.text(); strings.Count(logged, `"msg":"refused"`) != 6 || !strings.Contains(logged, "other.example") {
		t.Errorf("refusals not logged: %s", logged)
	}
}

func TestHostHeaderCannotNameAnotherHost(t *testing.T) {
	upstream := plainUpstream(t)
	w := start(t, upstream.Listener.Addr().String(), nil)
	port := portOf(t, upstream.Listener.Addr().String())
	conn, err := net.Dial("tcp", w.proxy.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET http://a.example:%s/ HTTP/1.1\r\nHost: secret.example\r\nProxy-Authorization: x\r\nConnection: close\r\n\r\n", port)
	answer, _ := io.ReadAll(conn)
	if !strings.Contains(string(answer), "host=a.example:"+port+" ") || !strings.Contains(string(answer), `proxy-header=""`) {
		t.Errorf("upstream saw another host or the proxy's header: %s", answer)
	}
}

func TestRebindingIsNotFollowed(t *testing.T) {
	upstream := plainUpstream(t)
	w := start(t, upstream.Listener.Addr().String(), nil)
	address := "http://rebinding.example:" + portOf(t, upstream.Listener.Addr().String()) + "/"
	if status, body := get(t, w.client(nil, ""), address); status != 200 {
		t.Fatalf("first answer is allowed: %d %s", status, body)
	}
	if asked := len(w.names.asked); asked != 1 {
		t.Errorf("%d look-ups for one connection: what was checked need not be what was connected to", asked)
	}
	fresh := start(t, upstream.Listener.Addr().String(), nil)
	fresh.names.answers["rebinding.example"] = []string{"127.0.0.2"}
	if status, _ := get(t, fresh.client(nil, ""), address); status != 403 {
		t.Errorf("the private answer was followed: %d", status)
	}
	for _, name := range w.names.asked {
		if !strings.HasSuffix(name, ".") {
			t.Errorf("%q was asked without its final dot: search domains would apply", name)
		}
	}
}

func TestTunnel(t *testing.T) {
	upstream := tlsUpstream(t)
	w := start(t, upstream.Listener.Addr().String(), nil)
	port := portOf(t, upstream.Listener.Addr().String())
	roots := x509.NewCertPool()
	roots.AddCert(upstream.Certificate())
	if status, body := get(t, w.client(roots, "a.example"), "https://a.example:"+port+"/"); status != 200 || body != "tls host=a.example:"+port {
		t.Errorf("%d %q", status, body)
	}
	for name, want := range map[string]string{
		"https://other.example:" + port + "/":          "Forbidden",
		"https://127.0.0.1:" + port + "/":              "Forbidden",
		"https://a.example:1/":                         "Forbidden",
		"https://inside.wild.example:" + port + "/":    "Forbidden",
		"https://x.missing.wild.example:" + port + "/": "Bad Gateway",
	} {
		if _, err := w.client(roots, "").Get(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

func TestServerNameMustBeTheConnectHost(t *testing.T) {
	upstream := tlsUpstream(t)
	w := start(t, upstream.Listener.Addr().String(), nil)
	port := portOf(t, upstream.Listener.Addr().String())
	for _, name := range []string{"secret.example", "x.wild.example"} {
		if _, err := w.client(nil, name).Get("https://a.example:" + port + "/"); err == nil {
			t.Errorf("server name %s passed a tunnel to a.example", name)
		}
		if !strings.Contains(w.log.text(), name) {
			t.Errorf("refusal of %s not logged: %s", name, w.log.text())
		}
	}
}

func TestTunnelCarriesOnlyTLS(t *testing.T) {
	var reached atomic.Int64
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				count, _ := io.Copy(io.Discard, conn)
				reached.Add(count)
			}()
		}
	}()
	w := start(t, listener.Addr().String(), nil)
	for _, opening := range []string{"SSH-2.0-x\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", ""} {
		conn, err := net.Dial("tcp", w.proxy.Host)
		if err != nil {
			t.Fatal(err)
		}
		target := "a.example:" + portOf(t, listener.Addr().String())
		fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n%s", target, target, opening)
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		answer, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
			t.Errorf("%q: tunnel did not end: %q %v", opening, answer, err)
		}
		_ = conn.Close()
	}
	if reached.Load() != 0 {
		t.Errorf("%d bytes that are no TLS reached the host", reached.Load())
	}
	if !strings.Contains(w.log.text(), "no TLS ClientHello") {
		t.Errorf("not logged: %s", w.log.text())
	}
}

func TestTunnelPassesOnHalfClose(t *testing.T) {
	left, leftPeer := tcpPair(t)
	right, rightPeer := tcpPair(t)
	go tunnel(left, left, right, time.Minute)
	fmt.Fprint(leftPeer, "question")
	_ = leftPeer.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(rightPeer); err != nil || string(got) != "question" {
		t.Fatalf("%q %v", got, err)
	}
	fmt.Fprint(rightPeer, "answer after the end of the question")
	_ = rightPeer.Close()
	if got, err := io.ReadAll(leftPeer); err != nil || string(got) != "answer after the end of the question" {
		t.Fatalf("%q %v", got, err)
	}
}

func TestIdleTunnelEnds(t *testing.T) {
	left, leftPeer := tcpPair(t)
	right, _ := tcpPair(t)
	ended := make(chan struct{})
	go func() { tunnel(left, left, right, 50*time.Millisecond); close(ended) }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("an idle tunnel stayed open")
	}
	_ = leftPeer.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := leftPeer.Read(make([]byte, 1)); err == nil {
		t.Fatal("peer was not closed")
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	upstream := plainUpstream(t)
	w := start(t, upstream.Listener.Addr().String(), func(o *options) { o.limits = limits{total: 4, perClient: 2} })
	open := func() net.Conn {
		conn, err := net.Dial("tcp", w.proxy.Host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	first, second := open(), open()
	ask := func(conn net.Conn) error {
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		_, err := http.ReadResponse(bufio.NewReader(conn), nil)
		return err
	}
	if err := errors.Join(ask(first), ask(second)); err != nil {
		t.Fatal(err)
	}
	if err := ask(open()); err == nil {
		t.Fatal("a third connection of one client was served")
	}
	_ = first.Close()
	deadline := time.Now().Add(5 * time.Second)
	for ask(open()) != nil {
		if time.Now().After(deadline) {
			t.Fatal("a freed place was not given again")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestRefusalsDoNotFillTheLog(t *testing.T) {
	out := &lockedBuffer{}
	refusals := &refusalLog{log: slog.New(slog.NewJSONHandler(out, nil))}
	for range 10_000 {
		refusals.refuse("c", "t", "w")
	}
	if lines := strings.Count(out.text(), "\n"); lines == 0 || lines > 10*refusalsPerSecond {
		t.Errorf("%d lines", lines)
	}
}

func FuzzHelloNeverPassesAnotherName(f *testing.F) {
	for _, name := range []string{"a.example", "b.example", ""} {
		f.Add(hello(f, name))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := readHello(context.Background(), bytes.NewReader(data), "a.example")
		if err == nil && !bytes.Contains(got, []byte("a.example")) {
			t.Fatalf("passed %x", data)
		}
		if err == nil && !bytes.HasPrefix(data, got) {
			t.Fatal("other bytes than were sent")
		}
	})
}

func hello(t testing.TB, name string) []byte {
	t.Helper()
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
	}()
	defer client.Close()
	data := make([]byte, 16<<10)
	count, err := server.Read(data)
	if err != nil {
		t.Fatal(err)
	}
	return data[:count]
}

func tcpPair(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	near, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
	return near, far
}
