package process

import (
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longshore.dev/agent/internal/faults"
)

const (
	maxIdle       = 4
	startWait     = 10 * time.Second
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
	live   map[*Command]bool
}

type supervisor struct {
	pid        int
	connection *net.UnixConn
}

// NewStarter starts a first supervisor ahead of the first command.
func NewStarter(reaper *Reaper) *Starter {
	starter := &Starter{reaper: reaper, live: map[*Command]bool{}}
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

// Live are the commands of which any process lives, in the background too.
func (s *Starter) Live() []*Command {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return slices.Collect(maps.Keys(s.live))
}

// Own is how many processes are the agent's: itself and its supervisors.
func (s *Starter) Own() int { return 1 + len(s.reaper.Kept()) }

func (s *Starter) note(command *Command, live bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if live {
		s.live[command] = true
	} else {
		delete(s.live, command)
	}
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
	sawKill    bool
	orphaned   atomic.Bool // Its supervisor is gone.
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
	// A supervisor that the task has killed before is replaced once.
	for attempt := 0; ; attempt++ {
		one, err := s.take()
		if err != nil {
			return nil, err
		}
		answer, unread, err := ask(one, asked, fds)
		if err == nil {
			return s.started(one, spec, answer)
		}
		s.discard(one)
		switch {
		case unread && attempt == 0:
		case errors.Is(err, io.EOF):
			s.killStrays()
			return killedCommand(), nil
		default:
			s.killStrays()
			return nil, faults.New(faults.Unavailable, "the command's supervisor does not answer: %v", err)
		}
	}
}

func (s *Starter) started(one *supervisor, spec Spec, answer reply) (*Command, error) {
	if answer.Error != "" {
		s.giveBack(one)
		return nil, startError(spec, answer)
	}
	command := &Command{pid: answer.Pid, supervisor: one, reaper: s.reaper, ended: make(chan struct{})}
	s.note(command, true)
	go command.follow(s)
	return command, nil
}

// killedCommand is one that took its supervisor along before its pid was known, as `kill -9 -1` may.
func killedCommand() *Command {
	command := &Command{ended: make(chan struct{})}
	command.finish(-1, int(unix.SIGKILL), true)
	return command
}

func (s *Starter) discard(one *supervisor) {
	_ = one.connection.Close()
	// Its orphans come to the agent when it is gone.
	for range killRounds {
		if unix.Kill(one.pid, unix.SIGKILL) != nil {
			return
		}
		time.Sleep(killPause)
	}
}

// killStrays kills what lost supervisors left, unless a command that is followed accounts for it.
func (s *Starter) killStrays() {
	KillTree(func() []int {
		left := strays(s.reaper.Kept(), nil)
		for _, command := range s.Live() {
			if command.orphaned.Load() {
				own := Descendants(Table(), map[int]bool{command.pid: true}, map[int]bool{command.pid: true})
				left = slices.DeleteFunc(left, func(pid int) bool {
					return pid == command.pid || slices.Contains(own, pid)
				})
			}
		}
		return left
	})
}

// strays are what killed supervisors leave: it comes to the agent, which has no other children but supervisors.
func strays(kept, sessions map[int]bool) []int {
	table := slices.DeleteFunc(Table(), func(entry Entry) bool { return kept[entry.Pid] })
	return Descendants(table, map[int]bool{os.Getpid(): true}, sessions)
}

// ask also says, of a failure, whether the supervisor certainly did not read the request: only then may it be repeated.
func ask(one *supervisor, asked request, fds [3]int) (answer reply, unread bool, err error) {
	_ = one.connection.SetDeadline(time.Now().Add(startWait))
	if err := send(one.connection, asked, fds[:]); err != nil {
		return reply{}, true, err
	}
	if answer, err = readReply(one.connection); err != nil {
		return reply{}, errors.Is(err, unix.ECONNRESET), err
	}
	return answer, false, one.connection.SetDeadline(time.Time{})
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
	defer starter.note(c, false)
	for {
		answer, err := readReply(c.supervisor.connection)
		if err != nil {
			c.orphaned.Store(true)
			c.lost()
			return
		}
		if answer.Exited {
			c.finish(answer.Code, answer.Signal, answer.SawKill)
		}
		if answer.Idle {
			starter.giveBack(c.supervisor)
			return
		}
	}
}

func (c *Command) finish(code, signal int, sawKill bool) {
	c.code, c.signal, c.sawKill = code, signal, sawKill
	close(c.ended)
}

func (c *Command) isEnded() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// lost: somebody in the sandbox killed the supervisor. Its command is ours now, or has ended unseen.
func (c *Command) lost() {
	_ = c.supervisor.connection.Close()
	if c.isEnded() {
		return
	}
	code, signal := -1, int(unix.SIGKILL)
	if status, known := c.reaper.Status(c.pid, nil); known {
		code, signal = ended(status)
	}
	c.finish(code, signal, diedOfKill(code, signal))
}

// Ended is closed when the command itself has ended.
func (c *Command) Ended() <-chan struct{} { return c.ended }

// Status is the exit code, or -1 and the signal; once Ended.
func (c *Command) Status() (code, signal int) { return c.code, c.signal }

// SawKill says whether the command or an orphan of it died of SIGKILL, or a shell said so by 137; once Ended.
func (c *Command) SawKill() bool { return c.sawKill }

// Signal signals the command itself, not its children.
func (c *Command) Signal(number int) error {
	if c.isEnded() {
		return nil
	}
	return signalOf(c.pid, number)
}

// Tree lists the command and all that descends from it, what has ended left out.
func (c *Command) Tree() []int {
	sessions := map[int]bool{}
	if !c.isEnded() {
		sessions[c.pid] = true
	}
	if !c.orphaned.Load() {
		return Descendants(Table(), map[int]bool{c.supervisor.pid: true}, sessions)
	}
	return strays(c.reaper.Kept(), sessions)
}

// KillTree kills the command and all that descends from it; false when it forks too fast.
func (c *Command) KillTree() bool { return KillTree(c.Tree) }
