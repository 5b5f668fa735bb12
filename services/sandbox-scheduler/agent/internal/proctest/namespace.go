// Package proctest gives tests that start commands a pid namespace of their own, whose init is the test process: as the
// agent is in a container, and so that a kill of everything ends nothing else.
package proctest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"longshore.dev/agent/internal/process"
)

const inside = "LONGSHORE_PROCTEST"

// Main is for TestMain: the whole test process again as an init. Supervisors are the same binary, too.
func Main(m *testing.M) int {
	switch {
	case len(os.Args) > 1 && os.Args[1] == process.SuperviseVerb:
		if process.Supervise() != nil {
			return 1
		}
		return 0
	case os.Getpid() == 1 && os.Getenv(inside) != "":
		_ = os.Unsetenv(inside)
		if err := ownProc(); err != nil {
			fmt.Fprintln(os.Stderr, "no /proc of the test's own:", err)
			return 1
		}
		return m.Run()
	}
	code, err := again()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tests that start commands are skipped, no pid namespace can be made:", err)
		return m.Run()
	}
	return code
}

// Need skips a test where Main could not make a namespace.
func Need(t *testing.T) {
	t.Helper()
	if os.Getpid() != 1 {
		t.Skip("not the init of a pid namespace")
	}
}

func ownProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return unix.Mount("proc", "/proc", "proc", 0, "")
}

func again() (int, error) {
	command := exec.Command("/proc/self/exe", os.Args[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.Env = append(os.Environ(), inside+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := command.Run()
	var exited *exec.ExitError
	if errors.As(err, &exited) {
		return max(exited.ExitCode(), 1), nil
	}
	return 0, err
}
