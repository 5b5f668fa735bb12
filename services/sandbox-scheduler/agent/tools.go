package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const installedMode = 0o555

// install copies this program, whole or not at all, and ends only when the pod is isolated: what starts next is the task's.
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
	if err := os.Rename(name, arguments[0]); err != nil {
		return err
	}
	return awaitIsolation(setting("CANARIES", ""), isolationLimit)
}

// wait keeps a pod alive that has done its work.
func wait() error {
	ending := make(chan os.Signal, 1)
	signal.Notify(ending, syscall.SIGTERM, syscall.SIGINT)
	<-ending
	return nil
}

// kernel says which kernel this is: sandboxed runtimes (gVisor, Kata) show one of their own.
func kernel(out io.Writer) error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err
	}
	words := make([]string, 0, 3)
	for _, field := range [][]byte{name.Sysname[:], name.Release[:], name.Version[:]} {
		words = append(words, unix.ByteSliceToString(field))
	}
	_, err := fmt.Fprintln(out, strings.Join(words, " "))
	return err
}

// connect carries one gRPC connection over stdin and stdout, for who can only run a program in the container.
func connect(in io.Reader, out io.Writer) error {
	// What passes here holds tokens: the task's root must not look into it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
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
