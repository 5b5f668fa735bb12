// Package process starts commands, follows their trees and reaps what is orphaned, as the init of a container.
package process

import (
	"maps"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	keepStatuses = 4096
	lostAfter    = 20 * time.Millisecond
)

// Reaper collects the status of every child, its own and adopted ones; as init nobody else may wait.
type Reaper struct {
	mutex    sync.Mutex
	statuses map[int]unix.WaitStatus
	order    []int
	waiting  map[int]chan unix.WaitStatus
	kept     map[int]bool
}

// NewReaper starts reaping.
func NewReaper() *Reaper {
	reaper := &Reaper{
		statuses: map[int]unix.WaitStatus{}, waiting: map[int]chan unix.WaitStatus{}, kept: map[int]bool{},
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	go func() {
		for {
			select {
			case <-signals:
			case <-time.After(time.Second): // Signals are merged; none may be missed for good.
			}
			reaper.reap()
		}
	}()
	return reaper
}

func (r *Reaper) reap() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WUNTRACED, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if status.Stopped() {
			if r.kept[pid] {
				_ = unix.Kill(pid, unix.SIGCONT)
			}
			continue
		}
		delete(r.kept, pid)
		if waiter, ok := r.waiting[pid]; ok {
			delete(r.waiting, pid)
			waiter <- status
			continue
		}
		r.statuses[pid] = status
		if r.order = append(r.order, pid); len(r.order) > keepStatuses {
			delete(r.statuses, r.order[0])
			r.order = r.order[1:]
		}
	}
}

// Start runs fork while nothing is reaped: a child's status is never taken before its pid is known. If somebody stops
// the process, it goes on at once.
func (r *Reaper) Start(fork func() (int, error)) (int, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	pid, err := fork()
	if err == nil {
		delete(r.statuses, pid) // Of an earlier process of this number.
		r.kept[pid] = true
	}
	return pid, err
}

// Kept are the live processes that Start started.
func (r *Reaper) Kept() map[int]bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return maps.Clone(r.kept)
}

// Status is how a process ended that is, or has become, a child of this one; false when that can't be known.
func (r *Reaper) Status(pid int, stop <-chan struct{}) (unix.WaitStatus, bool) {
	r.mutex.Lock()
	if status, ok := r.statuses[pid]; ok {
		delete(r.statuses, pid)
		r.mutex.Unlock()
		return status, true
	}
	answer := make(chan unix.WaitStatus, 1)
	r.waiting[pid] = answer
	r.mutex.Unlock()
	for {
		select {
		case status := <-answer:
			return status, true
		case <-stop:
			return 0, r.forget(pid, answer)
		case <-time.After(lostAfter):
			if unix.Kill(pid, 0) == unix.ESRCH {
				r.reap()
				select {
				case status := <-answer:
					return status, true
				default:
					return 0, r.forget(pid, answer)
				}
			}
		}
	}
}

func (r *Reaper) forget(pid int, answer chan unix.WaitStatus) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.waiting[pid] == answer {
		delete(r.waiting, pid)
	}
	return false
}
