package execs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"longshore.dev/agent/internal/faults"
	"longshore.dev/agent/internal/process"
	"longshore.dev/agent/internal/proctest"
)

func TestMain(m *testing.M) { os.Exit(proctest.Main(m)) }

var starter = sync.OnceValue(func() *process.Starter { return process.NewStarter(process.NewReaper()) })

func newTable(t *testing.T) *Table {
	t.Helper()
	proctest.Need(t)
	return NewTable(Settings{Workdir: t.TempDir()}, starter())
}

func shell(id, script string) Request {
	return Request{ID: id, Argv: []string{"sh", "-c", script}, Timeout: 30 * time.Second}
}

func begin(t *testing.T, table *Table, request Request) *Exec {
	t.Helper()
	exec, err := table.StartOrFind(request)
	if err != nil {
		t.Fatal(err)
	}
	return exec
}

type seen struct {
	text [2]string
	end  End
}

// watch attaches from offsets to the end; pieces must follow one another.
func watch(t *testing.T, exec *Exec, offsets [2]int64) (seen, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var got seen
	err := exec.Attach(ctx, offsets, func(chunk Chunk) error {
		if chunk.Offset != offsets[chunk.Stream]+int64(len(got.text[chunk.Stream])) {
			t.Errorf("stream %d: a piece at %d after %d bytes", chunk.Stream, chunk.Offset, len(got.text[chunk.Stream]))
		}
		got.text[chunk.Stream] += string(chunk.Data)
		return nil
	}, func(end *End) error { got.end = *end; return nil })
	return got, err
}

func ends(t *testing.T, exec *Exec) seen {
	t.Helper()
	got, err := watch(t, exec, [2]int64{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func wantKind(t *testing.T, err error, kind faults.Kind, words string) {
	t.Helper()
	var fault *faults.Error
	if !errors.As(err, &fault) || fault.Kind != kind || !strings.Contains(fault.Message, words) {
		t.Errorf("got %v, want %s with %q", err, kind, words)
	}
}

func TestEachIdRunsOnceHoweverManyAsk(t *testing.T) {
	table := newTable(t)
	request := shell("a", "echo ran >> log; echo out; echo err >&2; exit 3")
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			exec, err := table.StartOrFind(request)
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := watch(t, exec, [2]int64{}); err != nil || got.text != [2]string{"out\n", "err\n"} || got.end.Code != 3 {
				t.Errorf("%+v %v", got, err)
			}
		})
	}
	all.Wait()
	if log, err := os.ReadFile(table.settings.Workdir + "/log"); err != nil || string(log) != "ran\n" {
		t.Errorf("%q %v", log, err)
	}
}

func TestAnIdBelongsToOneCommand(t *testing.T) {
	table := newTable(t)
	first := Request{
		ID: "a", Argv: []string{"sh", "-c", "true"}, Env: map[string]string{"A": "1"}, Stdin: []byte("x"), Timeout: time.Minute,
	}
	ends(t, begin(t, table, first))
	for what, change := range map[string]func(*Request){
		"argv":       func(r *Request) { r.Argv = []string{"sh", "-c", "false"} },
		"argv split": func(r *Request) { r.Argv = []string{"sh", "-ctrue"} },
		"env value":  func(r *Request) { r.Env = map[string]string{"A": "2"} },
		"env name":   func(r *Request) { r.Env = map[string]string{"B": "1"} },
		"more env":   func(r *Request) { r.Env = map[string]string{"A": "1", "B": ""} },
		"no env":     func(r *Request) { r.Env = nil },
		"cwd":        func(r *Request) { r.Dir = "/" },
		"user":       func(r *Request) { r.User = "0" },
		"stdin":      func(r *Request) { r.Stdin = []byte("y") },
		"open stdin": func(r *Request) { r.StdinOpen = true },
	} {
		other := first
		change(&other)
		if _, err := table.StartOrFind(other); err == nil {
			t.Errorf("%s: taken for the same command", what)
		} else {
			wantKind(t, err, faults.Conflict, "belongs to another command")
		}
	}
	first.Timeout, first.Caps = time.Second, [2]int64{5, 5}
	begin(t, table, first)
	_, err := table.Find("never")
	wantKind(t, err, faults.NotFound, "never started")
}

func TestBadRequestsStartNothing(t *testing.T) {
	table := newTable(t)
	for words, request := range map[string]Request{
		"exec_id":    {Argv: []string{"true"}},
		"is empty":   {ID: "a"},
		"stdout_cap": {ID: "a", Argv: []string{"true"}, Caps: [2]int64{-1, 0}},
		"stderr_cap": {ID: "a", Argv: []string{"true"}, Caps: [2]int64{0, maxCap + 1}},
		"NUL":        {ID: "a", Argv: []string{"true", "\x00"}},
		"NUL bytes":  {ID: "a", Argv: []string{"true"}, Env: map[string]string{"A": "\x00"}},
	} {
		_, err := table.StartOrFind(request)
		wantKind(t, err, faults.InvalidSpec, words)
	}
	_, err := table.Find("a")
	wantKind(t, err, faults.NotFound, "a")
	unknown := shell("b", "true")
	unknown.User = "no-such-user"
	_, err = watch(t, begin(t, table, unknown), [2]int64{})
	wantKind(t, err, faults.InvalidSpec, "no-such-user")
}

func TestAttachFromAnyOffset(t *testing.T) {
	exec := begin(t, newTable(t), shell("a", "printf 0123456789; printf abc >&2"))
	ends(t, exec)
	for offset := range int64(12) {
		got, err := watch(t, exec, [2]int64{offset, 2})
		if want := "0123456789"[min(offset, 10):]; err != nil || got.text != [2]string{want, "c"} {
			t.Errorf("from %d: %+v %v", offset, got, err)
		}
	}
}

func TestCutOutputSaysSo(t *testing.T) {
	request := shell("a", "head -c 100000 /dev/zero; printf end")
	request.Caps = [2]int64{100, 100}
	exec := begin(t, newTable(t), request)
	got := map[int64]string{}
	var end *End
	err := exec.Attach(context.Background(), [2]int64{}, func(chunk Chunk) error {
		got[chunk.Offset] += string(chunk.Data)
		return nil
	}, func(last *End) error { end = last; return nil })
	if err != nil || end.Totals[0] != 100003 || !end.Truncated[0] || end.Truncated[1] {
		t.Fatalf("%+v %v", end, err)
	}
	if tail := got[100003-50]; len(tail) != 50 || !strings.HasSuffix(tail, "end") {
		t.Errorf("the tail is %q", tail)
	}
}

func TestAttachedSeesOutputWhileItRunsAndLeavesWithItsCall(t *testing.T) {
	exec := begin(t, newTable(t), shell("a", "echo first; sleep 300"))
	ctx, cancel := context.WithCancel(context.Background())
	err := exec.Attach(ctx, [2]int64{}, func(Chunk) error { cancel(); return nil }, func(*End) error { return nil })
	if !errors.Is(err, context.Canceled) || exec.done() {
		t.Errorf("%v", err)
	}
	if err := exec.Signal(context.Background(), 15); err != nil {
		t.Fatal(err)
	}
	if got := ends(t, exec); got.end.Signal != 15 || got.end.Code != -1 || got.text[0] != "first\n" {
		t.Errorf("%+v", got)
	}
	wantKind(t, exec.Signal(context.Background(), 15), faults.Conflict, "has ended")
}

func TestStdin(t *testing.T) {
	table, ctx := newTable(t), context.Background()
	whole := shell("whole", "cat")
	whole.Stdin = []byte(strings.Repeat("x", 200000))
	if got := ends(t, begin(t, table, whole)); got.text[0] != string(whole.Stdin) {
		t.Errorf("%d bytes came", len(got.text[0]))
	}
	if got := ends(t, begin(t, table, shell("none", "cat; echo over"))); got.text[0] != "over\n" {
		t.Errorf("%+v", got)
	}
	open := shell("open", "cat; echo over")
	open.Stdin, open.StdinOpen = []byte("1"), true
	exec := begin(t, table, open)
	for _, part := range []string{"2", "3"} {
		if err := exec.WriteStdin(ctx, []byte(part), part == "3"); err != nil {
			t.Fatal(err)
		}
	}
	if got := ends(t, exec); got.text[0] != "123over\n" {
		t.Errorf("%+v", got)
	}
	wantKind(t, exec.WriteStdin(ctx, []byte("4"), false), faults.Conflict, "has ended")
	deaf := begin(t, table, shell("deaf", "sleep 300"))
	wantKind(t, deaf.WriteStdin(ctx, []byte("1"), false), faults.Conflict, "stdin_open")
	_ = deaf.Signal(ctx, 9)
}

func TestOutputOfACommandThatReadsNoneOfItsInput(t *testing.T) {
	request := shell("a", "echo done")
	request.Stdin = []byte(strings.Repeat("x", 4<<20))
	if got := ends(t, begin(t, newTable(t), request)); got.text[0] != "done\n" || got.end.Code != 0 {
		t.Errorf("%+v", got.end)
	}
}

func TestTimeoutKillsAllOfACommand(t *testing.T) {
	request := shell("a", "echo begun; setsid sleep 300 & sleep 301")
	request.Timeout = 300 * time.Millisecond
	exec := begin(t, newTable(t), request)
	got := ends(t, exec)
	if !got.end.TimedOut || got.end.Signal != 9 || got.text[0] != "begun\n" || got.end.OOM {
		t.Errorf("%+v", got)
	}
	if left := exec.command.Tree(); len(left) > 0 {
		t.Errorf("%v live on", left)
	}
}

func TestBackgroundProcessDoesNotHoldItsCommandUp(t *testing.T) {
	exec := begin(t, newTable(t), shell("a", "sleep 300 & echo done"))
	defer func() { exec.command.KillTree() }()
	if got := ends(t, exec); got.text[0] != "done\n" || got.end.TimedOut || got.end.Duration > 20*time.Second {
		t.Errorf("%+v", got)
	}
}

func TestMissingProgramIsAnExitCode(t *testing.T) {
	got := ends(t, begin(t, newTable(t), Request{ID: "a", Argv: []string{"no-such-program"}, Timeout: time.Second}))
	if got.end.Code != 127 || !strings.Contains(got.text[1], "no-such-program") {
		t.Errorf("%+v", got)
	}
}

func TestOldOutputIsForgottenAndItsIdIsNot(t *testing.T) {
	table := newTable(t)
	for index := range 4 {
		request := shell(fmt.Sprint(index), "head -c 25000000 /dev/zero; echo ran >> log")
		request.Caps = [2]int64{maxCap, 0}
		exec := begin(t, table, request)
		end := func(*End) error { return nil }
		if err := exec.Attach(context.Background(), [2]int64{}, func(Chunk) error { return nil }, end); err != nil {
			t.Fatal(err)
		}
	}
	eventuallyForgotten(t, table, "1")
	for index, kept := range []bool{false, false, true, true} {
		exec, err := table.Find(fmt.Sprint(index))
		if err != nil {
			t.Fatal(err)
		}
		_, err = watch(t, exec, [2]int64{24999999, 0})
		if kept && err != nil {
			t.Errorf("%d: %v", index, err)
		}
		if !kept {
			wantKind(t, err, faults.Conflict, "no longer kept")
		}
	}
	again := shell("0", "head -c 25000000 /dev/zero; echo ran >> log")
	again.Caps = [2]int64{maxCap, 0}
	_, err := watch(t, begin(t, table, again), [2]int64{})
	wantKind(t, err, faults.Conflict, "no longer kept")
	if log, _ := os.ReadFile(table.settings.Workdir + "/log"); strings.Count(string(log), "\n") != 4 {
		t.Errorf("%q", log)
	}
}

// eventuallyForgotten: outputs go a moment after the end of a later command was seen.
func eventuallyForgotten(t *testing.T, table *Table, id string) {
	t.Helper()
	exec, err := table.Find(id)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := watch(t, exec, [2]int64{24999999, 0}); err != nil {
			return
		}
	}
	t.Fatal("its output is still kept")
}

// settled waits until there is room for one more command.
func settled(t *testing.T, table *Table, request Request) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := table.StartOrFind(request); err == nil {
			return
		}
	}
	t.Fatal("commands count as running that have ended")
}

func TestTooManyCommandsAreRefusedUntilOneEnds(t *testing.T) {
	table := newTable(t)
	for index := range maxRunning {
		if _, err := begin(t, table, shell(fmt.Sprint(index), "exec sleep 300")).running(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	_, err := table.StartOrFind(shell("more", "true"))
	wantKind(t, err, faults.QuotaExceeded, "wait for one to end")
	process.KillAll()
	settled(t, table, shell("more", "true"))
	ends(t, begin(t, table, shell("more", "true")))
}

func TestTimeouts(t *testing.T) {
	for _, bad := range []float64{0, -1, math.NaN(), math.Inf(-1), math.Inf(1)} {
		_, err := CheckTimeout(bad)
		wantKind(t, err, faults.InvalidSpec, "timeout_s")
	}
	for seconds, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 1e300: 1e9 * time.Second} {
		if got, err := CheckTimeout(seconds); err != nil || got != want {
			t.Errorf("%v: %v %v", seconds, got, err)
		}
	}
}
