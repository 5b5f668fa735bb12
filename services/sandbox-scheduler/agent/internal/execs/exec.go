// Package execs runs commands by id: each once, whoever attaches sees it from any offset, and it always ends.
package execs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longshore.dev/agent/internal/faults"
	"longshore.dev/agent/internal/output"
	"longshore.dev/agent/internal/process"
)

const (
	maxCap    = 64 << 20
	chunkSize = 1 << 20
	killWait  = 10 * time.Second
)

// Stream is one of a command's outputs.
type Stream int

const (
	Stdout Stream = iota
	Stderr
)

// Request is a command as asked for; an empty Dir and User are the agent's defaults, caps of 0 are 1 MiB.
type Request struct {
	ID        string
	Argv      []string
	Env       map[string]string
	Dir, User string
	Timeout   time.Duration
	Stdin     []byte
	StdinOpen bool
	Caps      [2]int64
	Offsets   [2]int64 // What the caller has seen already.
}

// CheckTimeout turns seconds into a duration. Refuses what is not positive.
func CheckTimeout(seconds float64) (time.Duration, error) {
	if !(seconds > 0) || math.IsInf(seconds, 1) {
		return 0, faults.Invalid("timeout_s", "timeout_s is %v; it must be positive", seconds)
	}
	return time.Duration(min(seconds, 1e9) * float64(time.Second)), nil
}

func (r *Request) check() error {
	if r.ID == "" {
		return faults.Invalid("exec_id", "exec_id is empty; choose one per command")
	}
	if len(r.Argv) == 0 || r.Argv[0] == "" {
		return faults.Invalid("command", "command is empty")
	}
	for index, name := range []string{"stdout", "stderr"} {
		if r.Caps[index] < 0 || r.Caps[index] > maxCap {
			return faults.Invalid(name+"_cap", "%s_cap is %d; it must be 0 to %d", name, r.Caps[index], maxCap)
		}
		if r.Offsets[index] < 0 {
			return faults.Invalid(name+"_offset", "%s_offset is %d; it must not be negative", name, r.Offsets[index])
		}
	}
	texts := append([]string{r.Dir, r.User}, r.Argv...)
	for name, value := range r.Env {
		texts = append(texts, name, value)
	}
	if slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, "\x00") }) {
		return faults.Invalid("command", "command, env and cwd must not contain NUL bytes")
	}
	return nil
}

// fingerprint covers what must be the same for the same id.
func (r *Request) fingerprint() [sha256.Size]byte {
	sum := sha256.New()
	number := func(value int) { _ = binary.Write(sum, binary.BigEndian, int64(value)) }
	text := func(value string) {
		number(len(value))
		_, _ = io.WriteString(sum, value)
	}
	number(len(r.Argv))
	for _, argument := range r.Argv {
		text(argument)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		text(name)
		text(r.Env[name])
	}
	for _, value := range []string{r.Dir, r.User, string(r.Stdin), strconv.FormatBool(r.StdinOpen)} {
		text(value)
	}
	return [sha256.Size]byte(sum.Sum(nil))
}

// Chunk is output at an offset of the raw stream.
type Chunk struct {
	Stream Stream
	Offset int64
	Data   []byte
}

// End is how a command ended; totals are before truncation.
type End struct {
	Code, Signal  int
	TimedOut, OOM bool
	Totals        [2]int64
	Truncated     [2]bool
	Duration      time.Duration
}

// Exec is one command, running or ended.
type Exec struct {
	id          string
	fingerprint [sha256.Size]byte
	overlapped  atomic.Bool // Another command ran meanwhile.
	mutex       sync.Mutex
	buffers     [2]*output.Buffer
	changed     chan struct{}
	started     chan struct{}
	command     *process.Command
	stdin       *os.File
	input       atomic.Pointer[os.File] // The same, for who must not wait for a write.
	feeding     sync.Mutex              // Holds stdin.
	end         *End
	failure     error
	forgotten   bool
}

func newExec(request *Request) *Exec {
	exec := &Exec{
		id: request.ID, fingerprint: request.fingerprint(), changed: make(chan struct{}), started: make(chan struct{}),
	}
	for index, limit := range request.Caps {
		if limit == 0 {
			limit = output.DefaultCap
		}
		exec.buffers[index] = output.NewBuffer(int(limit))
	}
	return exec
}

func (e *Exec) notify() {
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *Exec) done() bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.end != nil || e.failure != nil
}

func (e *Exec) take(stream Stream, data []byte) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.end == nil && !e.forgotten {
		e.buffers[stream].Append(data)
		e.notify()
	}
}

// run starts the command and follows it to its end. The request is not kept, its input may be large.
func (e *Exec) run(settings *Settings, request *Request) {
	began := time.Now()
	killsBefore := process.OOMKills()
	drains, err := e.start(settings, request)
	var missing *process.NotStarted
	if errors.As(err, &missing) {
		e.take(Stderr, []byte(missing.Message))
		e.finish(&End{Code: missing.Code, Duration: time.Since(began)}, nil)
		return
	}
	if err != nil {
		e.finish(nil, err)
		return
	}
	end := &End{}
	end.TimedOut, err = e.wait(request.Timeout)
	e.closeStdin()
	for _, drain := range drains {
		drain.Settle()
	}
	if err != nil {
		e.finish(nil, err)
		return
	}
	end.Code, end.Signal = e.command.Status()
	end.OOM = process.OOMKills() > killsBefore && e.mayHaveLost(end.TimedOut)
	end.Duration = time.Since(began)
	e.finish(end, nil)
}

// mayHaveLost says whether what was killed for memory can be of this command: the counter is the whole container's.
func (e *Exec) mayHaveLost(killedByUs bool) bool {
	return !e.overlapped.Load() || (e.command.SawKill() && !killedByUs)
}

func (e *Exec) finish(end *End, failure error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if end != nil {
		for index, buffer := range e.buffers {
			end.Totals[index], end.Truncated[index] = buffer.Total(), buffer.Truncated()
		}
	}
	e.end, e.failure = end, failure
	select {
	case <-e.started:
	default:
		close(e.started)
	}
	e.notify()
}

func (e *Exec) start(settings *Settings, request *Request) ([]*process.Drain, error) {
	spec, err := settings.spec(request)
	if err != nil {
		return nil, err
	}
	var drains []*process.Drain
	fds := [3]int{-1, -1, -1}
	defer func() {
		for _, fd := range fds {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
	}()
	for index := range 2 {
		stream := Stream(index)
		drain, theirs, err := process.NewDrain(func(data []byte) { e.take(stream, data) })
		if err != nil {
			return nil, faults.New(faults.Unavailable, "no pipe for the command: %v", err)
		}
		drains, fds[index+1] = append(drains, drain), theirs
	}
	if fds[0], err = e.openStdin(len(request.Stdin) > 0 || request.StdinOpen); err != nil {
		return nil, faults.New(faults.Unavailable, "no pipe for the command: %v", err)
	}
	command, err := settings.starter.Start(spec, fds)
	if err != nil {
		e.closeStdin()
		return nil, err
	}
	e.mutex.Lock()
	e.command = command
	e.mutex.Unlock()
	if e.input.Load() != nil {
		fed, stdin, eof := make(chan struct{}), request.Stdin, !request.StdinOpen
		go func() {
			e.feeding.Lock()
			close(fed) // Later writes queue behind this one.
			e.write(stdin, eof)
			e.feeding.Unlock()
		}()
		<-fed
	}
	close(e.started)
	return drains, nil
}

func (e *Exec) openStdin(wanted bool) (int, error) {
	if !wanted {
		return process.NoInput()
	}
	ours, theirs, err := process.Stdin()
	if err == nil {
		e.feeding.Lock()
		e.stdin = ours
		e.feeding.Unlock()
		e.input.Store(ours)
	}
	return theirs, err
}

func (e *Exec) feed(data []byte, eof bool) {
	e.feeding.Lock()
	defer e.feeding.Unlock()
	e.write(data, eof)
}

func (e *Exec) write(data []byte, eof bool) {
	if e.stdin == nil {
		return
	}
	if _, err := e.stdin.Write(data); err != nil || eof {
		_ = e.stdin.Close()
		e.stdin = nil
	}
}

// closeStdin also ends a write that nobody reads.
func (e *Exec) closeStdin() {
	if input := e.input.Load(); input != nil {
		_ = input.SetWriteDeadline(time.Now())
	}
	e.feed(nil, true)
}

func (e *Exec) wait(timeout time.Duration) (bool, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-e.command.Ended():
		return false, nil
	case <-timer.C:
	}
	if !e.command.KillTree() {
		process.KillAll()
	}
	select {
	case <-e.command.Ended():
		return true, nil
	case <-time.After(killWait):
		return true, faults.New(faults.Unavailable, "exec %s did not end %v after it was killed", e.id, killWait)
	}
}

// Attach hands over output from the offsets on, then the end. Returns what the command failed to start with.
func (e *Exec) Attach(ctx context.Context, offsets [2]int64, chunk func(Chunk) error, ended func(*End) error) error {
	for {
		pieces, changed, done, err := e.look(&offsets)
		if err != nil {
			return err
		}
		for _, piece := range pieces {
			if err := inPieces(piece, chunk); err != nil {
				return err
			}
		}
		if done != nil {
			return ended(done)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (e *Exec) look(offsets *[2]int64) ([]Chunk, <-chan struct{}, *End, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.forgotten {
		return nil, nil, nil, faults.New(faults.Conflict, "exec %s has ended and its output is no longer kept", e.id)
	}
	var pieces []Chunk
	for index, buffer := range e.buffers {
		if head := buffer.HeadFrom(offsets[index]); len(head) > 0 {
			pieces = append(pieces, Chunk{Stream(index), offsets[index], head})
			offsets[index] += int64(len(head))
		}
	}
	if e.failure != nil {
		return nil, nil, nil, e.failure
	}
	if e.end == nil {
		return pieces, e.changed, nil, nil
	}
	for index, buffer := range e.buffers {
		if first, tail := buffer.TailFrom(offsets[index]); len(tail) > 0 {
			pieces = append(pieces, Chunk{Stream(index), first, tail})
		}
	}
	return pieces, nil, e.end, nil
}

func inPieces(chunk Chunk, hand func(Chunk) error) error {
	for len(chunk.Data) > 0 {
		size := min(len(chunk.Data), chunkSize)
		if err := hand(Chunk{chunk.Stream, chunk.Offset, chunk.Data[:size]}); err != nil {
			return err
		}
		chunk.Offset += int64(size)
		chunk.Data = chunk.Data[size:]
	}
	return nil
}

func (e *Exec) running(ctx context.Context) (*process.Command, error) {
	select {
	case <-e.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if e.done() {
		if e.failure != nil {
			return nil, e.failure
		}
		return nil, faults.New(faults.Conflict, "exec %s has ended", e.id)
	}
	return e.command, nil
}

// WriteStdin writes to the command's input, and closes it with eof.
func (e *Exec) WriteStdin(ctx context.Context, data []byte, eof bool) error {
	if _, err := e.running(ctx); err != nil {
		return err
	}
	e.feeding.Lock()
	open := e.stdin != nil
	e.feeding.Unlock()
	if !open {
		return faults.New(faults.Conflict, "stdin of this command is closed; start it with stdin_open to write to it")
	}
	e.feed(data, eof)
	return nil
}

// Signal signals the command itself.
func (e *Exec) Signal(ctx context.Context, number int) error {
	command, err := e.running(ctx)
	if err != nil {
		return err
	}
	return command.Signal(number)
}
