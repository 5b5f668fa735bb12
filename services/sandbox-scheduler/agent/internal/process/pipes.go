package process

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pipeSize  = 1 << 20
	readBlock = 64 << 10
)

// Drain reads one output stream of a command to its end, also after the command itself has ended: a background
// process that writes must never block on a pipe that nobody reads.
type Drain struct {
	file    *os.File
	fd      int
	settled chan struct{}
}

// NewDrain makes a pipe; the second value is the command's end, the caller's to close.
func NewDrain(sink func([]byte)) (*Drain, int, error) {
	ours, theirs, err := pipe()
	if err != nil {
		return nil, -1, err
	}
	_, _ = unix.FcntlInt(uintptr(ours), unix.F_SETPIPE_SZ, pipeSize)
	drain := &Drain{file: os.NewFile(uintptr(ours), "output"), fd: ours, settled: make(chan struct{})}
	go drain.run(sink)
	return drain, theirs, nil
}

// pipe gives a non-blocking read end and a blocking write end.
func pipe() (int, int, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, err
	}
	if err := unix.SetNonblock(ends[0], true); err != nil {
		_ = unix.Close(ends[0])
		_ = unix.Close(ends[1])
		return -1, -1, err
	}
	return ends[0], ends[1], nil
}

func (d *Drain) run(sink func([]byte)) {
	block := make([]byte, readBlock)
	for {
		count, err := d.file.Read(block)
		if count > 0 {
			sink(block[:count])
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			d.rest(block, sink)
			close(d.settled)
			d.discard(block)
			return
		}
		if err != nil {
			close(d.settled)
			_ = d.file.Close()
			return
		}
	}
}

// rest takes what was written before the command ended.
func (d *Drain) rest(block []byte, sink func([]byte)) {
	for range pipeSize / 4096 {
		count, err := unix.Read(d.fd, block)
		if err == unix.EINTR {
			continue
		}
		if count <= 0 || err != nil {
			return
		}
		sink(block[:count])
	}
}

func (d *Drain) discard(block []byte) {
	_ = d.file.SetReadDeadline(time.Time{})
	for {
		if _, err := d.file.Read(block); err != nil {
			_ = d.file.Close()
			return
		}
	}
}

// Settle returns when all that the ended command wrote has been handed over.
func (d *Drain) Settle() {
	_ = d.file.SetReadDeadline(time.Now())
	<-d.settled
}

// Stdin makes the pipe of a command's input; the second value is the command's end, the caller's to close.
func Stdin() (*os.File, int, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, err
	}
	if err := unix.SetNonblock(ends[1], true); err != nil {
		_ = unix.Close(ends[0])
		_ = unix.Close(ends[1])
		return nil, -1, err
	}
	return os.NewFile(uintptr(ends[1]), "stdin"), ends[0], nil
}

// NoInput is a descriptor that is at its end.
func NoInput() (int, error) {
	if fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		return fd, nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return -1, err
	}
	_ = unix.Close(ends[1])
	return ends[0], nil
}
