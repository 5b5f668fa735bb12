package main

import (
	"log/slog"
	"net"
	"sync"
	"time"
)

type limits struct {
	total     int
	perClient int
}

// limitListener closes connections over its limits at once, so that one sandbox cannot lock out the others.
type limitListener struct {
	net.Listener
	limits   limits
	refusals *refusalLog

	mu       sync.Mutex
	open     int
	byClient map[string]int
}

func newLimitListener(listener net.Listener, limits limits, refusals *refusalLog) *limitListener {
	return &limitListener{Listener: listener, limits: limits, refusals: refusals, byClient: map[string]int{}}
}

func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(conn.RemoteAddr().String())
		if l.admit(client) {
			return &countedConn{Conn: conn, release: sync.OnceFunc(func() { l.release(client) })}, nil
		}
		l.refusals.refuse(client, "", "too many connections")
		_ = conn.Close()
	}
}

func (l *limitListener) admit(client string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.limits.total || l.byClient[client] >= l.limits.perClient {
		return false
	}
	l.open++
	l.byClient[client]++
	return true
}

func (l *limitListener) release(client string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.byClient[client]--; l.byClient[client] == 0 {
		delete(l.byClient, client)
	}
}

type countedConn struct {
	net.Conn
	release func()
}

func (c *countedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// CloseWrite half-closes, so that a tunnel can pass on the end of one direction.
func (c *countedConn) CloseWrite() error { return closeWrite(c.Conn) }

func clientOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

const refusalsPerSecond = 20

// refusalLog writes refusals, bounded: a hostile client must not fill the node's disk with them.
type refusalLog struct {
	log *slog.Logger

	mu      sync.Mutex
	second  time.Time
	written int
	dropped int
}

func (r *refusalLog) refuse(client, target, why string) {
	r.mu.Lock()
	now := time.Now()
	if now.Sub(r.second) >= time.Second {
		r.second, r.written = now, 0
	}
	if r.written >= refusalsPerSecond {
		r.dropped++
		r.mu.Unlock()
		return
	}
	r.written++
	dropped := r.dropped
	r.dropped = 0
	r.mu.Unlock()
	r.log.Warn("refused", "client", client, "target", target, "why", why, "not_logged_before", dropped)
}
