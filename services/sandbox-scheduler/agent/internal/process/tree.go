package process

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	killRounds = 200
	killPause  = 2 * time.Millisecond
)

// Entry is a process as /proc shows it.
type Entry struct {
	Pid, Parent, Session int
	Ended                bool
}

// Count is how many processes this pid namespace has; cheaper than Table.
func Count() int { return len(pids()) }

func pids() []int {
	folder, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer folder.Close()
	names, _ := folder.Readdirnames(-1)
	found := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

// Table lists all processes of this pid namespace.
func Table() []Entry {
	all := pids()
	found := make([]Entry, 0, len(all))
	for _, pid := range all {
		if entry, ok := entryOf(pid); ok {
			found = append(found, entry)
		}
	}
	return found
}

func entryOf(pid int) (Entry, bool) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Entry{}, false
	}
	return parseStat(pid, raw)
}

func parseStat(pid int, raw []byte) (Entry, bool) {
	// The name may hold blanks and brackets; what follows the last bracket does not.
	bracket := bytes.LastIndexByte(raw, ')')
	fields := bytes.Fields(raw[bracket+1:])
	if bracket < 0 || len(fields) < 18 {
		return Entry{}, false
	}
	parent, _ := strconv.Atoi(string(fields[1]))
	session, _ := strconv.Atoi(string(fields[3]))
	threads, _ := strconv.Atoi(string(fields[17]))
	state := fields[0][0]
	// A leader that ended while other threads live looks like a zombie, with more than one thread.
	return Entry{pid, parent, session, (state == 'Z' || state == 'X') && threads <= 1}, true
}

// Descendants are the live processes below the roots, and those of the sessions, roots themselves left out.
func Descendants(table []Entry, roots, sessions map[int]bool) []int {
	children := map[int][]Entry{}
	for _, entry := range table {
		children[entry.Parent] = append(children[entry.Parent], entry)
	}
	seen, found, open := map[int]bool{}, []int{}, []int{}
	take := func(entry Entry) {
		if seen[entry.Pid] || roots[entry.Pid] {
			return
		}
		seen[entry.Pid] = true
		open = append(open, entry.Pid)
		if !entry.Ended {
			found = append(found, entry.Pid)
		}
	}
	for root := range roots {
		open = append(open, root)
	}
	for _, entry := range table {
		if sessions[entry.Session] {
			take(entry)
		}
	}
	for len(open) > 0 {
		pid := open[len(open)-1]
		open = open[:len(open)-1]
		for _, entry := range children[pid] {
			take(entry)
		}
	}
	return found
}

// KillTree kills all that list gives, again and again until it gives nothing; false when they fork too fast.
func KillTree(list func() []int) bool {
	for range killRounds {
		pids := list()
		if len(pids) == 0 {
			return true
		}
		// Stopped first, so that none forks while the others die.
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(killPause)
	}
	return len(list()) == 0
}

// KillAll kills every process but this one, which must be the init of its pid namespace; how many there were. Guests
// are spared if the others can be killed one by one; a fork bomb only ends when all die at once.
func KillAll() int {
	count := 0
	for _, entry := range Table() {
		if entry.Pid != 1 && !entry.Ended {
			count++
		}
	}
	if spared := guests(); len(spared) > 0 && killAllBut(spared) {
		return count - len(spared)
	}
	for range killRounds {
		if err := unix.Kill(-1, unix.SIGKILL); err == unix.ESRCH {
			break
		}
		if len(Descendants(Table(), map[int]bool{1: true}, nil)) == 0 {
			break
		}
		time.Sleep(killPause)
	}
	return count
}
