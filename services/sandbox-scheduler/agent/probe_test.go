package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net"
	"testing"
	"time"
)

func probed(t *testing.T, arguments ...string) []attempt {
	t.Helper()
	var out bytes.Buffer
	if err := probe(append([]string{"--json", "--timeout", "1"}, arguments...), &out); err != nil {
		t.Fatal(err)
	}
	var found []attempt
	for lines := bufio.NewScanner(&out); lines.Scan(); {
		var one attempt
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatal(err)
		}
		found = append(found, one)
	}
	return found
}

func listening(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func TestProbeSaysWhatIsOpenInTheOrderAsked(t *testing.T) {
	open := listening(t).Addr().String()
	found := probed(t, "127.0.0.1:1", open)
	if len(found) != 2 || found[0].Open || found[0].Error == "" || !found[1].Open || found[1].Target != open {
		t.Errorf("%+v", found)
	}
}

func TestProbeWaitsForWhatComesLate(t *testing.T) {
	late := listening(t)
	time.AfterFunc(600*time.Millisecond, func() { _ = late.Close() })
	found := probed(t, "--until-expected", "20", "closed="+late.Addr().String())
	last := len(found) - 1
	if last < 2 || !found[0].Open || found[last].Open || found[last-1].Open || found[last].AtMs < 500 {
		t.Errorf("%+v", found)
	}
}

func TestProbeEndsWhenItsTimeIsUp(t *testing.T) {
	if found := probed(t, "--until-expected", "0.6", "open=127.0.0.1:1"); len(found) < 2 || len(found) > 4 {
		t.Errorf("%+v", found)
	}
}

func TestProbeRefusesWhatIsNoTarget(t *testing.T) {
	for _, bad := range [][]string{{}, {"host"}, {"shut=127.0.0.1:1"}, {"--timeout", "0", "a:1"}, {"--until-expected", "-1", "a:1"}} {
		if err := probe(bad, &bytes.Buffer{}); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}
