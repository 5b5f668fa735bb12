package process

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func statLine(name, state, threads string) []byte {
	return []byte("12 (" + name + ") " + state + " 3 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 " + threads + " 0 99")
}

func TestNamesWithBracketsAreRead(t *testing.T) {
	for _, name := range []string{"sh", "a) R 1 1", "x y (z)", ")"} {
		entry, ok := parseStat(12, statLine(name, "S", "1"))
		if want := (Entry{Pid: 12, Parent: 3, Session: 5}); !ok || entry != want {
			t.Errorf("%q: %+v %v", name, entry, ok)
		}
	}
	for _, torn := range []string{"", "12 (sh", "12 (sh) S 3"} {
		if entry, ok := parseStat(12, []byte(torn)); ok {
			t.Errorf("%q: %+v", torn, entry)
		}
	}
}

func TestZombieLeaderWithLiveThreadsLives(t *testing.T) {
	for state, threads := range map[string]string{"Z": "2", "S": "1", "D": "1"} {
		if entry, _ := parseStat(1, statLine("x", state, threads)); entry.Ended {
			t.Errorf("state %s with %s threads counts as ended", state, threads)
		}
	}
	for _, state := range []string{"Z", "X"} {
		if entry, _ := parseStat(1, statLine("x", state, "1")); !entry.Ended {
			t.Errorf("state %s counts as live", state)
		}
	}
}

func TestDescendants(t *testing.T) {
	table := []Entry{
		{Pid: 1, Session: 1},
		{Pid: 10, Parent: 1, Session: 10}, // A supervisor,
		{Pid: 11, Parent: 10, Session: 11},
		{Pid: 12, Parent: 11, Session: 12}, // that called setsid,
		{Pid: 13, Parent: 12, Session: 12, Ended: true},
		{Pid: 14, Parent: 13, Session: 14}, // below a zombie.
		{Pid: 20, Parent: 1, Session: 20},  // Another supervisor
		{Pid: 21, Parent: 20, Session: 21},
		{Pid: 30, Parent: 1, Session: 11}, // An orphan of the first one's session.
	}
	cases := []struct {
		roots, sessions map[int]bool
		want            []int
	}{
		{map[int]bool{10: true}, map[int]bool{11: true}, []int{11, 12, 14, 30}},
		{map[int]bool{10: true}, nil, []int{11, 12, 14}},
		{map[int]bool{20: true}, nil, []int{21}},
		{map[int]bool{99: true}, nil, nil},
		{map[int]bool{1: true}, nil, []int{10, 11, 12, 14, 20, 21, 30}},
	}
	for _, one := range cases {
		got := Descendants(table, one.roots, one.sessions)
		slices.Sort(got)
		if !slices.Equal(got, one.want) {
			t.Errorf("%v %v: %v, want %v", one.roots, one.sessions, got, one.want)
		}
	}
}

func memoryFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "memory")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMemoryCounters(t *testing.T) {
	texts := map[string]int64{
		"low 0\nhigh 0\noom 3\noom_kill 2\noom_group_kill 0\n": 2,
		"oom_kill_disable 0\nunder_oom 0\noom_kill 7\n":        7,
	}
	for text, want := range texts {
		if got, ok := counterIn(memoryFile(t, text), "oom_kill"); !ok || got != want {
			t.Errorf("%q: %d %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "oom_kill_disable 0\n", "oom_kill many\n"} {
		if got, ok := counterIn(memoryFile(t, text), "oom_kill"); ok {
			t.Errorf("%q: %d", text, got)
		}
	}
}
