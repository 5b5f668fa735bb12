package process_test

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longshore.dev/agent/internal/process"
	"longshore.dev/agent/internal/proctest"
)

const patience = 20 * time.Second

func TestMain(m *testing.M) { os.Exit(proctest.Main(m)) }

// One for all: a process has one reaper.
var shared = sync.OnceValue(func() *process.Starter { return process.NewStarter(process.NewReaper()) })

type running struct {
	*process.Command
	mutex  sync.Mutex
	output bytes.Buffer
	drain  *process.Drain
}

func (r *running) text() string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.output.String()
}

func start(t *testing.T, spec process.Spec) (*running, error) {
	t.Helper()
	proctest.Need(t)
	one := &running{}
	drain, theirs, err := process.NewDrain(func(data []byte) {
		one.mutex.Lock()
		defer one.mutex.Unlock()
		one.output.Write(data)
	})
	if err != nil {
		t.Fatal(err)
	}
	input, err := process.NoInput()
	if err != nil {
		t.Fatal(err)
	}
	one.drain = drain
	if spec.Dir == "" {
		spec.Dir = "/"
	}
	spec.Env = append(spec.Env, "PATH="+os.Getenv("PATH"))
	one.Command, err = shared().Start(spec, [3]int{input, theirs, theirs})
	_ = unix.Close(input)
	_ = unix.Close(theirs)
	if err == nil {
		t.Cleanup(func() { one.KillTree() })
	}
	return one, err
}

func shell(t *testing.T, script string) *running {
	t.Helper()
	one, err := start(t, process.Spec{Argv: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	return one
}

func (r *running) wantEnd(t *testing.T, code, signal int) {
	t.Helper()
	select {
	case <-r.Ended():
	case <-time.After(patience):
		t.Fatalf("has not ended; its tree is %v", r.Tree())
	}
	r.drain.Settle()
	if gotCode, gotSignal := r.Status(); gotCode != code || gotSignal != signal {
		t.Errorf("code %d signal %d, want %d and %d; it wrote %q", gotCode, gotSignal, code, signal, r.text())
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

// said waits for a line that is a pid.
func (r *running) said(t *testing.T) int {
	t.Helper()
	eventually(t, "a line", func() bool { return strings.Contains(r.text(), "\n") })
	pid, err := strconv.Atoi(strings.TrimSpace(r.text()))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestHowCommandsEnd(t *testing.T) {
	for script, want := range map[string][2]int{
		"true": {0, 0}, "exit 3": {3, 0}, "exit 255": {255, 0}, "exit 137": {137, 0},
		"kill -TERM $$": {-1, 15}, "kill -KILL $$": {-1, 9}, "kill -STOP $$ & kill -CONT $$; exit 4": {4, 0},
	} {
		shell(t, script).wantEnd(t, want[0], want[1])
	}
}

func TestCommandsThatCannotStart(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{"plain": "x", "lost": "#!/no/such/interpreter\n"} {
		if err := os.WriteFile(folder+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(folder+"/lost", 0o755); err != nil {
		t.Fatal(err)
	}
	for program, code := range map[string]int{
		"no-such-program": 127, "/no/such": 127, "./plain": 126, folder: 126, "./lost": 127, "": 126,
	} {
		_, err := start(t, process.Spec{Argv: []string{program}, Dir: folder})
		var missing *process.NotStarted
		if !errors.As(err, &missing) || missing.Code != code {
			t.Errorf("%q: %v", program, err)
		}
	}
	for _, dir := range []string{"/no/such", folder + "/plain"} {
		if _, err := start(t, process.Spec{Argv: []string{"true"}, Dir: dir}); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	shell(t, "exit 5").wantEnd(t, 5, 0)
}

func TestCommandRunsAsItsAccount(t *testing.T) {
	account := process.Account{UID: 4242, GID: 4243, Groups: []uint32{4244}, Home: "/"}
	one, err := start(t, process.Spec{Argv: []string{"sh", "-c", "id -u; id -g; id -G; pwd"}, Account: account})
	if err != nil {
		t.Fatal(err)
	}
	one.wantEnd(t, 0, 0)
	if one.text() != "4242\n4243\n4243 4244\n/\n" {
		t.Errorf("%q", one.text())
	}
}

func TestFilesAreBounded(t *testing.T) {
	argv := []string{"sh", "-c", "head -c 5000 /dev/zero > " + t.TempDir() + "/x"}
	one, err := start(t, process.Spec{Argv: argv, MaxFile: 4096})
	if err != nil {
		t.Fatal(err)
	}
	<-one.Ended()
	if code, signal := one.Status(); code == 0 && signal == 0 {
		t.Error("it wrote more than it may")
	}
}

func TestSetsidSurvivorsAreKilledAndOnlyThose(t *testing.T) {
	other := shell(t, "sleep 300")
	one := shell(t, "setsid sleep 301 & (setsid sh -c 'setsid sleep 302 & sleep 303' &) ; sleep 304")
	eventually(t, "all processes", func() bool { return len(one.Tree()) >= 6 })
	if !one.KillTree() {
		t.Error("some are left")
	}
	one.wantEnd(t, -1, 9)
	eventually(t, "an empty tree", func() bool { return len(one.Tree()) == 0 })
	if len(other.Tree()) == 0 {
		t.Error("another command was killed too")
	}
}

func TestBackgroundProcessesStayThoseOfTheirCommand(t *testing.T) {
	first := shell(t, "setsid sleep 300 &")
	first.wantEnd(t, 0, 0)
	second := shell(t, "sleep 300")
	second.KillTree()
	second.wantEnd(t, -1, 9)
	if len(first.Tree()) != 1 {
		t.Errorf("the first command's tree is %v", first.Tree())
	}
}

func TestStatusIsKnownThoughTheSupervisorWasKilled(t *testing.T) {
	flag := t.TempDir() + "/go"
	one := shell(t, "echo $PPID; while [ ! -e "+flag+" ]; do sleep 0.02; done; exit 7")
	if err := unix.Kill(one.said(t), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(flag, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	one.wantEnd(t, 7, 0)
	shell(t, "exit 6").wantEnd(t, 6, 0)
}

func TestTreeIsKilledThoughTheSupervisorWasKilled(t *testing.T) {
	one := shell(t, "setsid sleep 300 & echo $PPID; sleep 301")
	if err := unix.Kill(one.said(t), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !one.KillTree() {
		t.Error("some are left")
	}
	one.wantEnd(t, -1, 9)
}

func TestKilledIdleSupervisorsAreReplaced(t *testing.T) {
	one := shell(t, "echo $PPID")
	one.wantEnd(t, 0, 0)
	_ = unix.Kill(one.said(t), unix.SIGKILL)
	for range 5 {
		shell(t, "exit 8").wantEnd(t, 8, 0)
	}
}
