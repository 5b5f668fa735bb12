package process

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// SuperviseVerb is the verb of this binary that serves as a supervisor.
const SuperviseVerb = "supervise"

const (
	socketFD     = 3
	maxRequest   = 16 << 20
	oomScore     = 500 // Commands die before the agent when memory runs out.
	oomScoreStep = 50
	oomScoreMax  = 1000
	killedStatus = 128 + int(unix.SIGKILL) // How a shell says that what it ran was killed.
	noSuchChild  = -1
	startFailure = "start"
)

// A supervisor is the parent of one command at a time and adopts the orphans among its descendants, so that all of a
// command's processes stay below it, also those in sessions of their own.

type request struct {
	Path    string
	Argv    []string
	Env     []string
	Dir     string
	UID     uint32
	GID     uint32
	Groups  []uint32
	MaxFile uint64
}

type reply struct {
	Pid    int
	Exited bool
	Code   int
	Signal int
	// Whether it, or an orphan of it, died of SIGKILL.
	SawKill bool
	Idle    bool
	Error   string
	Errno   int
}

// Supervise is the life of a supervisor process: commands from the socket, one after the other. Returns at its end.
func Supervise() error {
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("subreaper: %w", err)
	}
	raiseOOMScore()
	// The agent's own priority, if it has one, is not its commands'. Children are forked on this thread.
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 0)
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	connection, err := connectionOf(os.NewFile(socketFD, "agent"))
	if err != nil {
		return err
	}
	for {
		asked, fds, err := receive(connection)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := superviseOne(connection, asked, fds); err != nil {
			return err
		}
	}
}

func raiseOOMScore() {
	const path = "/proc/self/oom_score_adj"
	raw, err := os.ReadFile(path)
	if err != nil {
		return
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err == nil {
		score := min(max(oomScore, own+oomScoreStep), oomScoreMax)
		_ = os.WriteFile(path, []byte(strconv.Itoa(score)), 0o600)
	}
}

func superviseOne(connection *net.UnixConn, asked request, fds []int) error {
	pid, err := forkExec(asked, fds)
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	if err != nil {
		answer := reply{Error: startFailure + ": " + err.Error(), Idle: true}
		var errno syscall.Errno
		if errors.As(err, &errno) {
			answer.Errno = int(errno)
		}
		return send(connection, answer, nil)
	}
	if err := send(connection, reply{Pid: pid}, nil); err != nil {
		return err
	}
	return waitForAll(connection, pid)
}

func waitForAll(connection *net.UnixConn, main int) error {
	sawKill := false
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err == unix.ECHILD {
			return send(connection, reply{Idle: true}, nil)
		}
		if err != nil {
			return err
		}
		code, signal := ended(status)
		sawKill = sawKill || diedOfKill(code, signal)
		if pid == main {
			answer := reply{Exited: true, Code: code, Signal: signal, SawKill: sawKill}
			if err := send(connection, answer, nil); err != nil {
				return err
			}
		}
	}
}

// ended is exit code and signal; the code is -1 for a death by signal.
func ended(status unix.WaitStatus) (code, signal int) {
	if status.Signaled() {
		return -1, int(status.Signal())
	}
	return status.ExitStatus(), 0
}

func diedOfKill(code, signal int) bool { return signal == int(unix.SIGKILL) || code == killedStatus }

func forkExec(asked request, fds []int) (int, error) {
	if len(fds) != 3 {
		return noSuchChild, fmt.Errorf("%d descriptors instead of 3", len(fds))
	}
	if asked.MaxFile > 0 {
		if err := limitFile(asked.MaxFile); err != nil {
			return noSuchChild, err
		}
	}
	attributes := &syscall.SysProcAttr{Setsid: true}
	if asked.UID != 0 || asked.GID != 0 || len(asked.Groups) > 0 {
		attributes.Credential = &syscall.Credential{Uid: asked.UID, Gid: asked.GID, Groups: asked.Groups}
	}
	return syscall.ForkExec(asked.Path, asked.Argv, &syscall.ProcAttr{
		Dir:   asked.Dir,
		Env:   asked.Env,
		Files: []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2])},
		Sys:   attributes,
	})
}

// limitFile keeps a lower limit that the container itself has.
func limitFile(size uint64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	size = min(size, limit.Max)
	return unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: size, Max: size})
}

func connectionOf(file *os.File) (*net.UnixConn, error) {
	connection, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	_ = file.Close()
	unixConnection, ok := connection.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("descriptor %d is no unix socket", socketFD)
	}
	return unixConnection, nil
}

func send(connection *net.UnixConn, message any, fds []int) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	framed := binary.BigEndian.AppendUint32(make([]byte, 0, len(body)+4), uint32(len(body)))
	framed = append(framed, body...)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	written, _, err := connection.WriteMsgUnix(framed, rights, nil)
	if err == nil && written < len(framed) {
		_, err = connection.Write(framed[written:])
	}
	return err
}

func receive(connection *net.UnixConn) (request, []int, error) {
	var asked request
	head, rights := make([]byte, 4), make([]byte, unix.CmsgSpace(3*4))
	count, rightsCount, _, _, err := connection.ReadMsgUnix(head, rights)
	if err != nil {
		return asked, nil, err
	}
	if count == 0 {
		return asked, nil, io.EOF
	}
	fds := descriptors(rights[:rightsCount])
	if _, err := io.ReadFull(connection, head[count:]); err != nil {
		return asked, fds, err
	}
	return asked, fds, readBody(connection, head, &asked)
}

func readReply(connection *net.UnixConn) (reply, error) {
	var answer reply
	head := make([]byte, 4)
	if _, err := io.ReadFull(connection, head); err != nil {
		return answer, err
	}
	return answer, readBody(connection, head, &answer)
}

func readBody(connection *net.UnixConn, head []byte, into any) error {
	size := binary.BigEndian.Uint32(head)
	if size > maxRequest {
		return fmt.Errorf("a message of %d bytes", size)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(connection, body); err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

func descriptors(rights []byte) []int {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil
	}
	var found []int
	for _, message := range messages {
		if fds, err := unix.ParseUnixRights(&message); err == nil {
			for _, fd := range fds {
				unix.CloseOnExec(fd)
				found = append(found, fd)
			}
		}
	}
	return found
}

// newSupervisor starts one; its pid and our end of its socket.
func newSupervisor(reaper *Reaper) (int, *net.UnixConn, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, err
	}
	defer unix.Close(pair[1])
	ours := os.NewFile(uintptr(pair[0]), "supervisor")
	connection, err := connectionOf(ours)
	if err != nil {
		_ = ours.Close()
		return 0, nil, err
	}
	pid, err := reaper.Start(func() (int, error) {
		return syscall.ForkExec("/proc/self/exe", []string{"longshore-agent", SuperviseVerb}, &syscall.ProcAttr{
			Dir:   "/",
			Env:   []string{"GOMAXPROCS=1", "GOGC=50"},
			Files: []uintptr{0, 1, 2, uintptr(pair[1])},
			Sys:   &syscall.SysProcAttr{Setsid: true},
		})
	})
	if err != nil {
		_ = connection.Close()
		return 0, nil, fmt.Errorf("cannot start a supervisor: %w", err)
	}
	return pid, connection, nil
}

func signalOf(pid, number int) error {
	if err := unix.Kill(pid, unix.Signal(number)); err != nil && err != unix.ESRCH {
		return fmt.Errorf("signal %s to %s: %w", strconv.Itoa(number), strconv.Itoa(pid), err)
	}
	return nil
}
