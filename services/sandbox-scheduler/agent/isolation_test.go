package main

import (
	"strings"
	"testing"
	"time"
)

func TestIsolationIsAwaited(t *testing.T) {
	first, second := listening(t), listening(t)
	time.AfterFunc(200*time.Millisecond, func() { _ = first.Close() })
	time.AfterFunc(500*time.Millisecond, func() { _ = second.Close() })
	began := time.Now()
	if err := awaitIsolation(first.Addr().String()+","+second.Addr().String(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if waited := time.Since(began); waited < 500*time.Millisecond {
		t.Errorf("went on after %s, while a canary could be reached", waited)
	}
}

func TestNothingRunsWhereIsolationNeverComes(t *testing.T) {
	open := listening(t).Addr().String()
	err := awaitIsolation("127.0.0.1:1,"+open, 200*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), open) {
		t.Errorf("%v", err)
	}
}

func TestBadCanariesAreRefused(t *testing.T) {
	for _, bad := range []string{"host", "a:1,,b:2", ","} {
		if awaitIsolation(bad, time.Second) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if err := awaitIsolation("", 0); err != nil {
		t.Error(err)
	}
}
