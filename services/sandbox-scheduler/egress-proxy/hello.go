package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

var errHelloSeen = errors.New("hello seen")

// readHello reads a TLS ClientHello that names host and returns its bytes. Anything else is an error: no TLS at all,
// no server name, or the name of another host (which a shared front end would serve instead).
func readHello(ctx context.Context, from io.Reader, host string) ([]byte, error) {
	var seen bytes.Buffer
	name, found := "", false
	config := &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		name, found = normalHost(hello.ServerName), true
		return nil, errHelloSeen
	}}
	err := tls.Server(readOnlyConn{io.TeeReader(from, &seen)}, config).HandshakeContext(ctx)
	switch {
	case !found:
		return nil, fmt.Errorf("no TLS ClientHello: %w", err)
	case name != host:
		return nil, fmt.Errorf("TLS server name %q differs from the CONNECT host %q", name, host)
	}
	return seen.Bytes(), nil
}

// readOnlyConn lets crypto/tls parse a hello without answering it.
type readOnlyConn struct{ io.Reader }

func (readOnlyConn) Write(data []byte) (int, error)   { return len(data), nil }
func (readOnlyConn) Close() error                     { return nil }
func (readOnlyConn) LocalAddr() net.Addr              { return nil }
func (readOnlyConn) RemoteAddr() net.Addr             { return nil }
func (readOnlyConn) SetDeadline(time.Time) error      { return nil }
func (readOnlyConn) SetReadDeadline(time.Time) error  { return nil }
func (readOnlyConn) SetWriteDeadline(time.Time) error { return nil }
