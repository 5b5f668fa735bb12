package execs

import (
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"longshore.dev/agent/internal/faults"
	"longshore.dev/agent/internal/process"
)

const (
	maxRunning   = 64
	maxKept      = 1024
	maxKeptBytes = 64 << 20
	watchEvery   = 100 * time.Millisecond
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
	account, err := process.FindAccount(user, "/etc/passwd", "/etc/group")
	if err != nil {
		return process.Spec{}, err
	}
	dir := request.Dir
	if dir == "" {
		dir = s.Workdir
	}
	return process.Spec{
		Argv: request.Argv, Env: environment(os.Environ(), s.Hidden, request.Env, account.Home), Dir: dir, Account: account,
		MaxFile: s.MaxFile,
	}, nil
}

// environment is the image's without what is not, then the caller's; PATH and HOME are never missing.
func environment(own, others []string, wished map[string]string, home string) []string {
	values := map[string]string{"PATH": defaultPath}
	for _, entry := range own {
		name, value, _ := strings.Cut(entry, "=")
		if name == "HOSTNAME" || name == "HOME" || hasPrefix(name, hidden) || slices.Contains(others, name) {
			continue
		}
		values[name] = value
	}
	values["HOME"] = home
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
	order    []*Exec
	running  int
}

// NewTable starts with no command.
func NewTable(settings Settings, starter *process.Starter) *Table {
	settings.starter = starter
	table := &Table{settings: &settings, execs: map[string]*Exec{}}
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
		if !known.request.same(&request) {
			return nil, faults.New(faults.Conflict, "exec_id %q belongs to another command; choose a new id", request.ID)
		}
		return known, nil
	}
	if t.running >= maxRunning {
		return nil, faults.New(faults.QuotaExceeded, "%d commands run in this sandbox; wait for one to end", maxRunning).
			With("which", "execs")
	}
	exec := newExec(request)
	t.execs[request.ID] = exec
	t.order = append(t.order, exec)
	t.running++
	go func() {
		exec.run(t.settings)
		t.ended()
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
func (t *Table) ended() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.running--
	kept, total := []*Exec{}, 0
	for _, exec := range t.order {
		if bytes, ok := exec.keptBytes(); ok {
			kept = append(kept, exec)
			total += bytes
		}
	}
	for index, exec := range kept {
		if total <= maxKeptBytes && len(kept)-index <= maxKept {
			return
		}
		bytes, _ := exec.keptBytes()
		total -= bytes
		exec.forget()
	}
}

// keptBytes is the output held of an ended command; false while it runs or when it is forgotten.
func (e *Exec) keptBytes() (int, bool) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if (e.end == nil && e.failure == nil) || e.forgotten {
		return 0, false
	}
	return e.buffers[Stdout].Kept() + e.buffers[Stderr].Kept(), true
}

func (e *Exec) forget() {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.forgotten = true
	e.buffers = newExec(Request{Caps: [2]int64{1, 1}}).buffers
}

// watchProcesses ends what forks beyond the limit: RLIMIT_NPROC does not bind a container's root.
func (t *Table) watchProcesses() {
	for range time.Tick(watchEvery) {
		if len(process.Table()) <= t.settings.MaxProcesses {
			continue
		}
		if worst := t.largest(); worst == nil || !worst.KillTree() {
			process.KillAll()
		}
	}
}

func (t *Table) largest() *process.Command {
	t.mutex.Lock()
	running := []*process.Command{}
	for _, exec := range t.order {
		exec.mutex.Lock()
		if exec.command != nil && exec.end == nil && exec.failure == nil {
			running = append(running, exec.command)
		}
		exec.mutex.Unlock()
	}
	t.mutex.Unlock()
	var worst *process.Command
	most := t.settings.MaxProcesses / 2
	for _, command := range running {
		if size := len(command.Tree()); size > most {
			worst, most = command, size
		}
	}
	return worst
}
