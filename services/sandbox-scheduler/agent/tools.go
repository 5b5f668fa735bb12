package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const installedMode = 0o555

// install copies this program, whole or not at all.
func install(arguments []string) error {
	if len(arguments) != 1 {
		return errUsage
	}
	source, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer source.Close()
	name := arguments[0] + ".new"
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	target, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	if err = errors.Join(err, target.Chmod(installedMode), target.Close()); err != nil {
		return err
	}
	return os.Rename(name, arguments[0])
}

// connect carries one gRPC connection over stdin and stdout, for who can only run a program in the container.
func connect(in io.Reader, out io.Writer) error {
	connection, err := dialAgent()
	if err != nil {
		return err
	}
	defer connection.Close()
	done := make(chan error, 2)
	go func() {
		_, err := io.Copy(connection, in)
		if half, ok := connection.(interface{ CloseWrite() error }); ok && err == nil {
			err = half.CloseWrite()
		}
		if err != nil {
			done <- err
		}
	}()
	go func() {
		_, err := io.Copy(out, connection)
		done <- err
	}()
	return <-done
}

func dialAgent() (net.Conn, error) {
	address := setting("LISTEN", listenAt)
	if path, local := strings.CutPrefix(address, "unix:"); local {
		return net.Dial("unix", path)
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	return net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
}

type attempt struct {
	Target string  `json:"target"`
	Open   bool    `json:"open"`
	Error  string  `json:"error"`
	Ms     float64 `json:"ms"`
}

// probe tries all targets at once and prints what it found in their order.
func probe(arguments []string, out io.Writer) error {
	flags := flag.NewFlagSet("probe", flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "one JSON object a line")
	seconds := flags.Float64("timeout", 2, "seconds for each target")
	if err := flags.Parse(arguments); err != nil || flags.NArg() == 0 || !(*seconds > 0) {
		return errUsage
	}
	found := make([]attempt, flags.NArg())
	var all sync.WaitGroup
	for index, target := range flags.Args() {
		all.Go(func() { found[index] = try(target, time.Duration(*seconds*float64(time.Second))) })
	}
	all.Wait()
	for _, one := range found {
		if err := printAttempt(out, one, *asJSON); err != nil {
			return err
		}
	}
	return nil
}

func try(target string, timeout time.Duration) attempt {
	began := time.Now()
	connection, err := net.DialTimeout("tcp", target, timeout)
	result := attempt{Target: target, Open: err == nil, Ms: float64(time.Since(began).Microseconds()) / 1000}
	if err != nil {
		result.Error = err.Error()
	} else {
		_ = connection.Close()
	}
	return result
}

func printAttempt(out io.Writer, one attempt, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(one)
	}
	state := "open"
	if !one.Open {
		state = "refused (" + one.Error + ")"
	}
	_, err := fmt.Fprintf(out, "%s %s %.1f ms\n", one.Target, state, one.Ms)
	return err
}
