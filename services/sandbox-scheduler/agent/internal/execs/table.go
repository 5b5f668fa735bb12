package execs

import (
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"longshore.dev/agent/internal/faults"
	"longshore.dev/agent/internal/output"
	"longshore.dev/agent/internal/process"
)

const (
	maxRunning   = 64
	maxKept      = 1024
	maxKeptBytes = 64 << 20
	watchEvery   = 100 * time.Millisecond
	passwdFile   = "/etc/passwd"
	groupFile    = "/etc/group"
	defaultPath  = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Not the task's: what configures the agent, and what a container runtime sets for itself.
var hidden = []string{"LONGSHORE_", "KUBERNETES_"}

// Settings are what all commands of a sandbox share.
type Settings struct {
	Workdir      string
	User         string
	Hidden       []string // More names of variables that commands do not get.
	MaxProcesses int      // 0: no limit.
	MaxFile      uint64   // Bytes; 0: no limit.
	starter      *process.Starter
}

func (s *Settings) spec(request *Request) (process.Spec, error) {
	user := request.User
	if user == "" {
		user = s.User
	}
	account, err := process.FindAccount(user, passwdFile, groupFile)
	if err != nil {
		return process.Spec{}, err
	}
	own, err := process.FindAccount(strconv.Itoa(os.Getuid()), passwdFile, groupFile)
	if err != nil {
		return process.Spec{}, err
	}
	dir := request.Dir
	if dir == "" {
		dir = s.Workdir
	}
	return process.Spec{
		Argv: request.Argv, Env: environment(os.Environ(), s.Hidden, request.Env, account.Home, own.Home), Dir: dir,
		Account: account, MaxFile: s.MaxFile,
	}, nil
}

// environment is the image's without what is not, then the caller's; PATH and HOME are never missing. ownHome is the
// home of the agent's user.
func environment(own, others []string, wished map[string]string, home, ownHome string) []string {
	values := map[string]string{"PATH": defaultPath, "HOME": home}
	for _, entry := range own {
		name, value, _ := strings.Cut(entry, "=")
		if name == "HOSTNAME" || hasPrefix(name, hidden) || slices.Contains(others, name) {
			continue
		}
		// A container runtime adds the agent's own HOME; another one is the image's.
		if name == "HOME" && value == ownHome {
			continue
		}
		values[name] = value
	}
	for name, value := range wished {
		values[name] = value
	}
	list := make([]string, 0, len(values))
	for name, value := range values {
		list = append(list, name+"="+value)
	}
	sort.Strings(list)
	return list
}

func hasPrefix(name string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// Table is all commands of the sandbox.
type Table struct {
	settings *Settings
	mutex    sync.Mutex
	execs    map[string]*Exec
	order    []*Exec // Those whose output is kept or still comes, oldest first.
	running  map[*Exec]bool
}

// NewTable starts with no command.
func NewTable(settings Settings, starter *process.Starter) *Table {
	settings.starter = starter
	table := &Table{settings: &settings, execs: map[string]*Exec{}, running: map[*Exec]bool{}}
	if settings.MaxProcesses > 0 {
		go table.watchProcesses()
	}
	return table
}

// StartOrFind is the command of this id; started now if it is new.
func (t *Table) StartOrFind(request Request) (*Exec, error) {
	if err := request.check(); err != nil {
		return nil, err
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if known, ok := t.execs[request.ID]; ok {
		if known.fingerprint != request.fingerprint() {
			return nil, faults.New(faults.Conflict, "exec_id %q belongs to another command; choose a new id", request.ID)
		}
		return known, nil
	}
	if len(t.running) >= maxRunning {
		return nil, faults.New(faults.QuotaExceeded, "%d commands run in this sandbox; wait for one to end", maxRunning).
			With("which", "execs")
	}
	exec := newExec(&request)
	exec.overlapped.Store(len(t.running) > 0)
	for other := range t.running {
		other.overlapped.Store(true)
	}
	t.execs[request.ID] = exec
	t.order = append(t.order, exec)
	t.running[exec] = true
	go func() {
		exec.run(t.settings, &request)
		t.ended(exec)
	}()
	return exec, nil
}

// Find is the command of this id.
func (t *Table) Find(id string) (*Exec, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if exec, ok := t.execs[id]; ok {
		return exec, nil
	}
	return nil, faults.New(faults.NotFound, "exec %q was never started in this sandbox", id)
}

// ended frees the oldest outputs beyond the bounds; ids stay known, so that nothing is ever run twice.
func (t *Table) ended(exec *Exec) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	delete(t.running, exec)
	count, total := 0, 0
	for _, one := range t.order {
		if bytes, ended := one.keptBytes(); ended {
			count++
			total += bytes
		}
	}
	t.order = slices.DeleteFunc(t.order, func(one *Exec) bool {
		bytes, ended := one.keptBytes()
		if !ended || (total <= maxKeptBytes && count <= maxKept) {
			return false
		}
		count--
		total -= bytes
		one.forget()
		return true
	})
}

// keptBytes is the output held of a command, and whether that has ended.
func (e *Exec) keptBytes() (int, bool) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.buffers[Stdout].Kept() + e.buffers[Stderr].Kept(), e.end != nil || e.failure != nil
}

func (e *Exec) forget() {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.forgotten = true
	e.buffers = [2]*output.Buffer{output.NewBuffer(0), output.NewBuffer(0)}
}

// watchProcesses ends what forks beyond the limit: RLIMIT_NPROC does not bind a container's root.
func (t *Table) watchProcesses() {
	for range time.Tick(watchEvery) {
		live := t.settings.starter.Live()
		if len(live) > 0 && process.Count()-t.settings.starter.Own() > t.settings.MaxProcesses {
			t.endLargest(live)
		}
	}
}

func (t *Table) endLargest(live []*process.Command) {
	worst, most := live[0], -1
	for _, command := range live {
		if size := len(command.Tree()); size > most {
			worst, most = command, size
		}
	}
	t.explain(worst, fmt.Sprintf("longshore: killed with its children: more than %d processes in this sandbox\n",
		t.settings.MaxProcesses))
	if !worst.KillTree() {
		process.KillAll()
	}
}

// explain adds a line to the stderr of a command that is about to be killed.
func (t *Table) explain(command *process.Command, line string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for exec := range t.running {
		if exec.runs(command) {
			exec.take(Stderr, []byte(line))
		}
	}
}

func (e *Exec) runs(command *process.Command) bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.command == command
}
