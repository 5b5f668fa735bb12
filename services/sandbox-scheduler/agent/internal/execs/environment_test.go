package execs

import (
	"slices"
	"testing"
)

func TestEnvironment(t *testing.T) {
	own := []string{
		"PATH=/image/bin", "A=image", "B=image", "LANG=C=D", "HOSTNAME=pod", "LONGSHORE_AGENT_PUBLIC_KEY=k", "LONGSHORE_X=1",
		"KUBERNETES_SERVICE_HOST=10.0.0.1", "container=podman", "HOME=/root", "EMPTY=",
	}
	wished := map[string]string{"B": "mine", "HOSTNAME": "task"}
	got := environment(own, []string{"container", ""}, wished, "/home/ann", "/root")
	want := []string{"A=image", "B=mine", "EMPTY=", "HOME=/home/ann", "HOSTNAME=task", "LANG=C=D", "PATH=/image/bin"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestPathAndHomeAreNeverMissing(t *testing.T) {
	if got := environment(nil, nil, nil, "/root", "/root"); !slices.Equal(got, []string{"HOME=/root", "PATH=" + defaultPath}) {
		t.Errorf("%q", got)
	}
	wished := map[string]string{"HOME": "/h", "PATH": "/p"}
	if got := environment([]string{"PATH=/image"}, nil, wished, "/root", "/"); !slices.Equal(got, []string{"HOME=/h", "PATH=/p"}) {
		t.Errorf("%q", got)
	}
	// A home that the image sets, unlike one that a container runtime adds, is the image's.
	if got := environment([]string{"HOME=/image"}, nil, nil, "/home/ann", "/root"); !slices.Contains(got, "HOME=/image") {
		t.Errorf("%q", got)
	}
}
