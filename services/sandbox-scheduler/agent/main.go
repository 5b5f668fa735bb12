// longshore-agent is the init of a task's container: it runs commands and moves files for whoever holds a token.
package main

import (
	"errors"
	"fmt"
	"os"

	"longshore.dev/agent/internal/process"
)

var version = "dev"

const usage = `usage: longshore-agent VERB
  serve               run as the init of a sandbox; configured by LONGSHORE_AGENT_*
  install DEST        copy this program to DEST
  connect             bridge stdin and stdout to the agent of this container
  probe [--json] [--timeout SECONDS] [--until-expected SECONDS] [open=|closed=]HOST:PORT...
                      try to connect to each target
  wait                do nothing until a signal comes
  kernel              print the kernel that this program runs on
  version             print the version`

// errUsage ends with exit status 2.
var errUsage = errors.New(usage)

func main() {
	verb := ""
	if len(os.Args) > 1 {
		verb = os.Args[1]
	}
	err := run(verb, os.Args[min(2, len(os.Args)):])
	switch {
	case err == nil:
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "longshore-agent "+verb+":", err)
		os.Exit(1)
	}
}

func run(verb string, arguments []string) error {
	switch verb {
	case "serve":
		return serve()
	case process.SuperviseVerb:
		return process.Supervise()
	case "install":
		return install(arguments)
	case "connect":
		return connect(os.Stdin, os.Stdout)
	case "probe":
		return probe(arguments, os.Stdout)
	case "wait":
		return wait()
	case "kernel":
		return kernel(os.Stdout)
	case "version":
		fmt.Println(version)
		return nil
	}
	return errUsage
}
