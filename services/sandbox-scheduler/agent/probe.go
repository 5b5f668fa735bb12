package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

const probePause = 250 * time.Millisecond

// attempt is one line of the probe's output; at_ms counts from the probe's start.
type attempt struct {
	Target string  `json:"target"`
	Open   bool    `json:"open"`
	Error  string  `json:"error"`
	Ms     float64 `json:"ms"`
	AtMs   float64 `json:"at_ms"`
}

type probeTarget struct {
	address string
	wanted  string // "open", "closed", or "" for mere information
}

func (t probeTarget) asWanted(open bool) bool { return t.wanted == "" || (t.wanted == "open") == open }

// probe tries all targets at once and prints what it found in their order. With -until-expected it does so again, until
// two rounds in a row went as `open=` and `closed=` before the targets say, or the time is up: network policies come
// into force late, and only the pod itself sees how late.
func probe(arguments []string, out io.Writer) error {
	flags := flag.NewFlagSet("probe", flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "one JSON object a line")
	timeout := flags.Float64("timeout", 2, "seconds for each target")
	limit := flags.Float64("until-expected", 0, "seconds to go on until all is as expected; 0: one round")
	if err := flags.Parse(arguments); err != nil || flags.NArg() == 0 || !(*timeout > 0) || *limit < 0 {
		return errUsage
	}
	targets, err := probeTargets(flags.Args())
	if err != nil {
		return err
	}
	start := time.Now()
	for inARow := 0; ; {
		inARow++
		for index, one := range tryAll(targets, seconds(*timeout), start) {
			if err := printAttempt(out, one, *asJSON); err != nil {
				return err
			}
			if !targets[index].asWanted(one.Open) {
				inARow = 0
			}
		}
		if inARow == 2 || time.Since(start)+probePause > seconds(*limit) {
			return nil
		}
		time.Sleep(probePause)
	}
}

func seconds(count float64) time.Duration { return time.Duration(count * float64(time.Second)) }

func probeTargets(arguments []string) ([]probeTarget, error) {
	targets := make([]probeTarget, 0, len(arguments))
	for _, argument := range arguments {
		one := probeTarget{address: argument}
		if wanted, address, found := strings.Cut(argument, "="); found {
			one = probeTarget{address, wanted}
		}
		_, _, err := net.SplitHostPort(one.address)
		if err != nil || (one.wanted != "" && one.wanted != "open" && one.wanted != "closed") {
			return nil, fmt.Errorf("%q is none of host:port, open=host:port, closed=host:port", argument)
		}
		targets = append(targets, one)
	}
	return targets, nil
}

func tryAll(targets []probeTarget, timeout time.Duration, start time.Time) []attempt {
	found := make([]attempt, len(targets))
	var all sync.WaitGroup
	for index, target := range targets {
		all.Go(func() { found[index] = try(target.address, timeout, start) })
	}
	all.Wait()
	return found
}

func try(target string, timeout time.Duration, start time.Time) attempt {
	began := time.Now()
	connection, err := net.DialTimeout("tcp", target, timeout)
	result := attempt{
		Target: target,
		Open:   err == nil,
		Ms:     milliseconds(time.Since(began)),
		AtMs:   milliseconds(time.Since(start)),
	}
	if err != nil {
		result.Error = err.Error()
	} else {
		_ = connection.Close()
	}
	return result
}

func milliseconds(duration time.Duration) float64 { return float64(duration.Microseconds()) / 1000 }

func printAttempt(out io.Writer, one attempt, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(one)
	}
	state := "open"
	if !one.Open {
		state = "refused (" + one.Error + ")"
	}
	_, err := fmt.Fprintf(out, "%s %s %.1f ms\n", one.Target, state, one.Ms)
	return err
}
