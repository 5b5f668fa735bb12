package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// What Python reads; the repository holds both sides.
const python = "../../../../../libs/common/longshore_common/"

type recorder struct{ trailer metadata.MD }

func (*recorder) Method() string                         { return "/test" }
func (*recorder) SetHeader(metadata.MD) error            { return nil }
func (*recorder) SendHeader(metadata.MD) error           { return nil }
func (r *recorder) SetTrailer(trailer metadata.MD) error { r.trailer = trailer; return nil }

func render(err error) (error, metadata.MD) {
	stream := &recorder{}
	got := Rendered(grpc.NewContextWithServerTransportStream(context.Background(), stream), err)
	return got, stream.trailer
}

func source(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(python + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestTrailerIsWhatPythonReads(t *testing.T) {
	statuses := source(t, "grpc_status.py")
	key := regexp.MustCompile(`DETAIL_KEY = "(.+)"`).FindStringSubmatch(statuses)
	fields := regexp.MustCompile(`body\["(\w+)"\]`).FindAllStringSubmatch(statuses, -1)
	if key == nil || len(fields) != 3 {
		t.Fatalf("grpc_status.py has changed: key %v, fields %v", key, fields)
	}
	message := "line\nand ümlaut \xff%"
	got, trailer := render(fmt.Errorf("around: %w", Invalid("path", "%s", message)))
	if status.Code(got) != codes.InvalidArgument || status.Convert(got).Message() != message {
		t.Errorf("%v", got)
	}
	values := trailer.Get(key[1])
	if len(trailer) != 1 || len(values) != 1 {
		t.Fatalf("trailer %v", trailer)
	}
	var body map[string]any
	if err := json.Unmarshal([]byte(values[0]), &body); err != nil {
		t.Fatal(err)
	}
	for _, field := range fields {
		if _, ok := body[field[1]]; !ok {
			t.Errorf("%q is missing in %v", field[1], body)
		}
	}
	details, _ := body["details"].(map[string]any)
	if len(body) != 3 || body["code"] != "invalid_spec" || body["retryable"] != false || details["field"] != "path" {
		t.Errorf("%v", body)
	}
}

func TestDetailsAreNeverNull(t *testing.T) {
	_, trailer := render(New(NotFound, "x"))
	if values := trailer.Get(detailKey); len(values) != 1 || !strings.Contains(values[0], `"details":{}`) {
		t.Errorf("%v", trailer)
	}
}

// Python's name of each status and code is the same word; Go's codes print as CamelCase.
func TestKindsAndStatusesAreThoseOfPython(t *testing.T) {
	tree, statuses := source(t, "errors.py"), source(t, "grpc_status.py")
	for kind, code := range statusOf {
		name := strings.ToUpper(string(kind))
		if !strings.Contains(tree, fmt.Sprintf("%s = %q", name, string(kind))) {
			t.Errorf("errors.py has no code %q", kind)
		}
		said := regexp.MustCompile(`ErrorCode\.` + name + `: grpc\.StatusCode\.(\w+)`).FindStringSubmatch(statuses)
		if said == nil || strings.ReplaceAll(strings.ToLower(said[1]), "_", "") != strings.ToLower(code.String()) {
			t.Errorf("%s is %v here and %v in Python", kind, code, said)
		}
		if retryable := New(kind, "x").Retryable; retryable != (kind == Unavailable) {
			t.Errorf("%s: retryable %v", kind, retryable)
		}
	}
}

func TestOtherErrors(t *testing.T) {
	if got, trailer := render(nil); got != nil || trailer != nil {
		t.Errorf("%v %v", got, trailer)
	}
	own := status.Error(codes.Unimplemented, "no such method")
	if got, trailer := render(own); !errors.Is(got, own) || trailer != nil {
		t.Errorf("%v %v", got, trailer)
	}
	got, trailer := render(errors.New("a fault of ours"))
	if status.Code(got) != codes.Internal || !strings.Contains(trailer.Get(detailKey)[0], `"internal"`) {
		t.Errorf("%v %v", got, trailer)
	}
}
