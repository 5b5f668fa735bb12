// Package server serves longshore.agent.v1.AgentService for the container it runs in.
package server

import (
	"context"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"longshore.dev/agent/gen/agentv1"
	"longshore.dev/agent/internal/execs"
	"longshore.dev/agent/internal/faults"
	"longshore.dev/agent/internal/files"
	"longshore.dev/agent/internal/process"
)

const (
	maxSignal  = 64
	maxMessage = 64 << 20
	minPing    = 5 * time.Second
)

// Identity is what Health says.
type Identity struct{ Sandbox, Instance, Runtime string }

// Agent implements the service.
type Agent struct {
	agentv1.UnimplementedAgentServiceServer
	identity Identity
	table    *execs.Table
}

// New makes a gRPC server that checks tokens and speaks Longshore's errors.
func New(identity Identity, tokens *Tokens, table *execs.Table) *grpc.Server {
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.InitialWindowSize(4<<20),
		grpc.InitialConnWindowSize(16<<20),
		grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := tokens.Check(ctx); err != nil {
				return nil, faults.Rendered(ctx, err)
			}
			answer, err := next(ctx, request)
			return answer, faults.Rendered(ctx, err)
		}),
		grpc.StreamInterceptor(func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := tokens.Check(stream.Context()); err != nil {
				return faults.Rendered(stream.Context(), err)
			}
			return faults.Rendered(stream.Context(), next(service, stream))
		}),
	)
	agentv1.RegisterAgentServiceServer(server, &Agent{identity: identity, table: table})
	return server
}

var streams = [2]agentv1.Stream{agentv1.Stream_STREAM_STDOUT, agentv1.Stream_STREAM_STDERR}

// Exec runs a command once and hands over its output and end.
func (a *Agent) Exec(request *agentv1.ExecRequest, stream grpc.ServerStreamingServer[agentv1.ExecResponse]) error {
	timeout, err := execs.CheckTimeout(request.TimeoutS)
	if err != nil {
		return err
	}
	offsets := [2]int64{request.StdoutOffset, request.StderrOffset}
	exec, err := a.table.StartOrFind(execs.Request{
		ID: request.ExecId, Argv: request.Command, Env: request.Env, Dir: request.Cwd, User: request.User,
		Timeout: timeout, Stdin: request.Stdin, StdinOpen: request.StdinOpen,
		Caps: [2]int64{request.StdoutCap, request.StderrCap}, Offsets: offsets,
	})
	if err != nil {
		return err
	}
	return exec.Attach(stream.Context(), offsets,
		func(chunk execs.Chunk) error {
			output := &agentv1.Output{Stream: streams[chunk.Stream], Offset: chunk.Offset, Data: chunk.Data}
			return stream.Send(&agentv1.ExecResponse{Event: &agentv1.ExecResponse_Output{Output: output}})
		},
		func(end *execs.End) error {
			return stream.Send(&agentv1.ExecResponse{Event: &agentv1.ExecResponse_Exited{Exited: exited(end)}})
		})
}

func exited(end *execs.End) *agentv1.Exited {
	return &agentv1.Exited{
		ExitCode: int32(end.Code), Signal: int32(end.Signal), TimedOut: end.TimedOut, OomKilled: end.OOM,
		StdoutBytes: end.Totals[0], StderrBytes: end.Totals[1],
		StdoutTruncated: end.Truncated[0], StderrTruncated: end.Truncated[1],
		DurationS: end.Duration.Seconds(),
	}
}

// WriteStdin writes to a running command.
func (a *Agent) WriteStdin(ctx context.Context, request *agentv1.WriteStdinRequest) (*agentv1.WriteStdinResponse, error) {
	exec, err := a.table.Find(request.ExecId)
	if err != nil {
		return nil, err
	}
	return &agentv1.WriteStdinResponse{}, exec.WriteStdin(ctx, request.Data, request.Eof)
}

// Signal signals a running command.
func (a *Agent) Signal(ctx context.Context, request *agentv1.SignalRequest) (*agentv1.SignalResponse, error) {
	if request.Signal <= 0 || request.Signal > maxSignal {
		return nil, faults.Invalid("signal", "signal %d does not exist", request.Signal)
	}
	exec, err := a.table.Find(request.ExecId)
	if err != nil {
		return nil, err
	}
	return &agentv1.SignalResponse{}, exec.Signal(ctx, int(request.Signal))
}

// KillAll kills everything but the agent.
func (a *Agent) KillAll(context.Context, *agentv1.KillAllRequest) (*agentv1.KillAllResponse, error) {
	return &agentv1.KillAllResponse{Killed: int32(process.KillAll())}, nil
}

// Upload takes a file or a tar.
func (a *Agent) Upload(stream grpc.ClientStreamingServer[agentv1.UploadRequest, agentv1.UploadResponse]) error {
	first, err := stream.Recv()
	if err == io.EOF {
		return faults.Invalid("header", "the upload is empty; its first message is a header")
	}
	if err != nil {
		return err
	}
	header := first.GetHeader()
	if header == nil {
		return faults.Invalid("header", "the first message of an upload is its header")
	}
	upload, err := files.NewUpload(files.Header{
		Path: header.Path, Digest: header.Digest, Tar: header.Tar, Mode: header.Mode, Replace: header.Replace,
	})
	if err != nil {
		return err
	}
	defer upload.Close()
	if err := receive(stream, upload); err != nil {
		return err
	}
	size, err := upload.Finish()
	if err != nil {
		return err
	}
	return stream.SendAndClose(&agentv1.UploadResponse{Bytes: size})
}

func receive(stream grpc.ClientStreamingServer[agentv1.UploadRequest, agentv1.UploadResponse], upload io.Writer) error {
	for {
		part, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if part.GetHeader() != nil {
			return faults.Invalid("header", "an upload has one header")
		}
		if _, err := upload.Write(part.GetData()); err != nil {
			return err
		}
	}
}

// Download hands over a file or a folder, then the digest.
func (a *Agent) Download(request *agentv1.DownloadRequest, stream grpc.ServerStreamingServer[agentv1.DownloadResponse]) error {
	digest, err := files.Download(request.Path, request.Tar, request.MaxBytes, func(data []byte) error {
		return stream.Send(&agentv1.DownloadResponse{Part: &agentv1.DownloadResponse_Data{Data: data}})
	})
	if err != nil {
		return err
	}
	return stream.Send(&agentv1.DownloadResponse{Part: &agentv1.DownloadResponse_Digest{Digest: digest}})
}

// Stat looks at a path.
func (a *Agent) Stat(_ context.Context, request *agentv1.StatRequest) (*agentv1.StatResponse, error) {
	info, err := files.Stat(request.Path)
	return &agentv1.StatResponse{Exists: info.Exists, Kind: info.Kind, Size: info.Size, Mode: info.Mode}, err
}

// Remove removes paths.
func (a *Agent) Remove(_ context.Context, request *agentv1.RemoveRequest) (*agentv1.RemoveResponse, error) {
	return &agentv1.RemoveResponse{}, files.Remove(request.Paths)
}

// Health says who answers.
func (a *Agent) Health(context.Context, *agentv1.HealthRequest) (*agentv1.HealthResponse, error) {
	return &agentv1.HealthResponse{
		SandboxId: a.identity.Sandbox, Runtime: a.identity.Runtime, Instance: a.identity.Instance,
	}, nil
}
