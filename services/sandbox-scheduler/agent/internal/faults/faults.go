// Package faults is the wire form of Longshore's error tree (libs/common/longshore_common/grpc_status.py).
package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const detailKey = "longshore-error-bin"

// Kind is an error code of the tree.
type Kind string

const (
	NotFound         Kind = "not_found"
	InvalidSpec      Kind = "invalid_spec"
	QuotaExceeded    Kind = "quota_exceeded"
	Conflict         Kind = "conflict"
	Unavailable      Kind = "unavailable"
	Internal         Kind = "internal"
	PermissionDenied Kind = "permission_denied"
)

var statusOf = map[Kind]codes.Code{
	NotFound:         codes.NotFound,
	InvalidSpec:      codes.InvalidArgument,
	QuotaExceeded:    codes.ResourceExhausted,
	Conflict:         codes.FailedPrecondition,
	Unavailable:      codes.Unavailable,
	Internal:         codes.Internal,
	PermissionDenied: codes.PermissionDenied,
}

// Error crosses the agent's edge.
type Error struct {
	Kind      Kind
	Message   string
	Details   map[string]string
	Retryable bool
}

func (e *Error) Error() string { return e.Message }

// New makes an error of a kind; as in the tree, only Unavailable is retryable.
func New(kind Kind, format string, args ...any) *Error {
	return &Error{
		Kind: kind, Message: fmt.Sprintf(format, args...), Details: map[string]string{}, Retryable: kind == Unavailable,
	}
}

// With adds a detail: the field of an InvalidSpec, which limit of a QuotaExceeded.
func (e *Error) With(key, value string) *Error {
	e.Details[key] = value
	return e
}

// Invalid is an InvalidSpec that names its field.
func Invalid(field, format string, args ...any) *Error {
	return New(InvalidSpec, format, args...).With("field", field)
}

func of(err error) *Error {
	var fault *Error
	if errors.As(err, &fault) {
		return fault
	}
	return New(Internal, "%v", err)
}

func rendered(ctx context.Context, err error) error {
	fault := of(err)
	body, marshalling := json.Marshal(map[string]any{
		"code": fault.Kind, "details": fault.Details, "retryable": fault.Retryable,
	})
	if marshalling == nil {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(detailKey, string(body)))
	}
	return status.Error(statusOf[fault.Kind], fault.Message)
}

// Rendered turns an error into a gRPC status with the details in the trailer; gRPC's own statuses pass.
func Rendered(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if _, ours := status.FromError(err); ours {
		return err
	}
	return rendered(ctx, err)
}
