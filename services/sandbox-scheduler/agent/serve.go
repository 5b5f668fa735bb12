package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"longshore.dev/agent/internal/execs"
	"longshore.dev/agent/internal/process"
	"longshore.dev/agent/internal/server"
)

const (
	prefix     = "LONGSHORE_AGENT_"
	listenAt   = ":7409"
	runtimeIs  = "pod"
	priorityUp = -10
	megabyte   = 1 << 20
	signalled  = 128
)

func setting(name, otherwise string) string {
	if value := os.Getenv(prefix + name); value != "" {
		return value
	}
	return otherwise
}

func count(name string) (int, error) {
	value, err := strconv.Atoi(setting(name, "0"))
	if err != nil || value < 0 {
		return 0, fmt.Errorf("%s%s is %q; it must be a number, 0 for no limit", prefix, name, os.Getenv(prefix+name))
	}
	return value, nil
}

func settings() (execs.Settings, error) {
	processes, err := count("MAX_PROCESSES")
	if err != nil {
		return execs.Settings{}, err
	}
	file, err := count("MAX_FILE_MB")
	if err != nil {
		return execs.Settings{}, err
	}
	here, err := os.Getwd()
	if err != nil {
		here = "/"
	}
	workdir := setting("WORKDIR", here)
	return execs.Settings{
		Workdir: workdir, User: setting("USER", ""), Hidden: strings.Split(setting("HIDDEN_ENV", ""), ","),
		MaxProcesses: processes, MaxFile: uint64(file) * megabyte,
	}, os.MkdirAll(workdir, 0o755)
}

// raisePriority is for where the container may: to answer while the task takes all processors. It is a thread's property.
func raisePriority() {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, priorityUp)
		}
	}
}

func serve() error {
	// The task's processes must not look into the init of their container.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	raisePriority()
	unix.Umask(0o022)
	wanted, err := settings()
	if err != nil {
		return err
	}
	identity := server.Identity{
		Sandbox: setting("SANDBOX_ID", ""), Instance: setting("INSTANCE", ""), Runtime: setting("RUNTIME", runtimeIs),
	}
	tokens, err := server.NewTokens(setting("PUBLIC_KEY", ""), identity.Sandbox, identity.Instance)
	if err != nil {
		return err
	}
	if err := awaitIsolation(setting("CANARIES", ""), isolationLimit); err != nil {
		return err
	}
	listener, err := listen(setting("LISTEN", listenAt))
	if err != nil {
		return err
	}
	starter := process.NewStarter(process.NewReaper())
	grpcServer := server.New(identity, tokens, execs.NewTable(wanted, starter))
	ending := make(chan os.Signal, 1)
	signal.Notify(ending, syscall.SIGTERM, syscall.SIGINT)
	failed := make(chan error, 1)
	go func() { failed <- grpcServer.Serve(listener) }()
	select {
	case received := <-ending:
		// At once: a sandbox that is deleted has nothing left to say, and its processes go with its init. Not with 0:
		// the kubelet would call an evicted pod Succeeded and forget that, and why, it evicted it.
		os.Exit(signalled + int(received.(syscall.Signal)))
		return nil
	case err := <-failed:
		return err
	}
}

func listen(address string) (net.Listener, error) {
	if path, local := strings.CutPrefix(address, "unix:"); local {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		return net.Listen("unix", path)
	}
	return net.Listen("tcp", address)
}
