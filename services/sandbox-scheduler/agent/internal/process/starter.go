package process

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"longshore.dev/agent/internal/faults"
)

const (
	maxIdle       = 4
	notFound      = 127
	notExecutable = 126
)

// Spec is a command to start; Env is complete, Dir absolute.
type Spec struct {
	Argv    []string
	Env     []string
	Dir     string
	Account Account
	MaxFile uint64 // Bytes of the largest file it may write; 0: no limit.
}

// Starter starts commands under supervisors, which it keeps for the next one.
type Starter struct {
	reaper *Reaper
	mutex  sync.Mutex
	idle   []*supervisor
}

type supervisor struct {
	pid        int
	connection *net.UnixConn
}

// NewStarter starts a first supervisor ahead of the first command.
func NewStarter(reaper *Reaper) *Starter {
	starter := &Starter{reaper: reaper}
	if first, err := starter.fresh(); err == nil {
		starter.idle = append(starter.idle, first)
	}
	return starter
}

func (s *Starter) fresh() (*supervisor, error) {
	pid, connection, err := newSupervisor(s.reaper)
	if err != nil {
		return nil, faults.New(faults.Unavailable, "%v", err)
	}
	return &supervisor{pid, connection}, nil
}

func (s *Starter) take() (*supervisor, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for len(s.idle) > 0 {
		last := s.idle[len(s.idle)-1]
		s.idle = s.idle[:len(s.idle)-1]
		if unix.Kill(last.pid, 0) == nil {
			return last, nil
		}
		_ = last.connection.Close()
	}
	return s.fresh()
}

func (s *Starter) giveBack(one *supervisor) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(s.idle) >= maxIdle {
		_ = one.connection.Close() // It ends when it reads that.
		return
	}
	s.idle = append(s.idle, one)
}

// Command is a started command.
type Command struct {
	pid        int
	supervisor *supervisor
	reaper     *Reaper
	ended      chan struct{}
	code       int
	signal     int
}

// NotStarted says that there is no such program, as a shell would: exit code 127 or 126 and a line for stderr.
type NotStarted struct {
	Code    int
	Message string
}

func (n *NotStarted) Error() string { return n.Message }

// Start runs a command with these descriptors as stdin, stdout and stderr; they are the caller's to close.
func (s *Starter) Start(spec Spec, fds [3]int) (*Command, error) {
	if info, err := os.Stat(spec.Dir); err != nil || !info.IsDir() {
		why := "not a folder"
		if err != nil {
			why = "no such folder"
		}
		return nil, faults.Invalid("cwd", "cannot enter %s: %s", spec.Dir, why)
	}
	path, err := resolve(spec)
	if err != nil {
		return nil, err
	}
	asked := request{path, spec.Argv, spec.Env, spec.Dir, spec.Account.UID, spec.Account.GID, spec.Account.Groups, spec.MaxFile}
	// A supervisor that the task has killed meanwhile is replaced once.
	for attempt := 0; ; attempt++ {
		one, err := s.take()
		if err != nil {
			return nil, err
		}
		answer, err := ask(one, asked, fds)
		if err != nil {
			_ = one.connection.Close()
			if attempt == 0 {
				continue
			}
			return nil, faults.New(faults.Unavailable, "the command's supervisor is gone: %v", err)
		}
		if answer.Error != "" {
			s.giveBack(one)
			return nil, startError(spec, answer)
		}
		command := &Command{pid: answer.Pid, supervisor: one, reaper: s.reaper, ended: make(chan struct{})}
		go command.follow(s)
		return command, nil
	}
}

func ask(one *supervisor, asked request, fds [3]int) (reply, error) {
	if err := send(one.connection, asked, fds[:]); err != nil {
		return reply{}, err
	}
	return readReply(one.connection)
}

func startError(spec Spec, answer reply) error {
	switch unix.Errno(answer.Errno) {
	case unix.ENOENT, unix.ENOTDIR:
		return &NotStarted{notFound, spec.Argv[0] + ": no such file, or its interpreter is missing\n"}
	case unix.EACCES, unix.ENOEXEC, unix.EISDIR:
		return &NotStarted{notExecutable, spec.Argv[0] + ": " + unix.Errno(answer.Errno).Error() + "\n"}
	case unix.E2BIG:
		return faults.Invalid("command", "arguments and environment are longer than the kernel takes")
	}
	return faults.New(faults.Unavailable, "cannot start the command: %s", answer.Error)
}

// resolve finds the program as a shell does, in the command's own PATH.
func resolve(spec Spec) (string, error) {
	program := spec.Argv[0]
	candidates := []string{program}
	if !strings.Contains(program, "/") {
		candidates = candidates[:0]
		for _, folder := range filepath.SplitList(valueOf(spec.Env, "PATH")) {
			candidates = append(candidates, filepath.Join(folder, program))
		}
	}
	failure := &NotStarted{notFound, program + ": No such file or directory\n"}
	for _, candidate := range candidates {
		path := candidate
		if !filepath.IsAbs(path) {
			path = filepath.Join(spec.Dir, path)
		}
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		if !info.IsDir() && info.Mode()&0o111 != 0 {
			return path, nil
		}
		failure = &NotStarted{notExecutable, program + ": Permission denied\n"}
	}
	return "", failure
}

func valueOf(env []string, name string) string {
	for _, entry := range env {
		if value, found := strings.CutPrefix(entry, name+"="); found {
			return value
		}
	}
	return ""
}

func (c *Command) follow(starter *Starter) {
	for {
		answer, err := readReply(c.supervisor.connection)
		if err != nil {
			c.lost()
			return
		}
		if answer.Exited {
			c.code, c.signal = answer.Code, answer.Signal
			close(c.ended)
		}
		if answer.Idle {
			starter.giveBack(c.supervisor)
			return
		}
	}
}

// lost: somebody in the sandbox killed the supervisor. Its command is ours now, or has ended unseen.
func (c *Command) lost() {
	_ = c.supervisor.connection.Close()
	select {
	case <-c.ended:
		return
	default:
	}
	status, known := c.reaper.Status(c.pid, nil)
	if known {
		c.code, c.signal = ended(status)
	} else {
		c.code, c.signal = -1, int(unix.SIGKILL)
	}
	close(c.ended)
}

// Ended is closed when the command itself has ended.
func (c *Command) Ended() <-chan struct{} { return c.ended }

// Status is the exit code, or -1 and the signal; once Ended.
func (c *Command) Status() (code, signal int) { return c.code, c.signal }

// Signal signals the command itself, not its children.
func (c *Command) Signal(number int) error { return signalOf(c.pid, number) }

// Tree lists the command and all that descends from it, zombies left out.
func (c *Command) Tree() []int {
	return Descendants(Table(), map[int]bool{c.supervisor.pid: true}, map[int]bool{c.pid: true})
}

// KillTree kills the command and all that descends from it; false when it forks too fast.
func (c *Command) KillTree() bool { return KillTree(c.Tree) }
