package server

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"strings"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/metadata"

	"longshore.dev/agent/internal/faults"
)

const (
	issuer   = "longshore-sandbox-scheduler"
	audience = "longshore-agent"
	keyBytes = ed25519.PublicKeySize
)

// Tokens checks who calls: the scheduler signs, the agent knows the public key only.
type Tokens struct {
	key      ed25519.PublicKey
	instance string
	parser   *jwt.Parser
}

// NewTokens takes the base64 of the raw public key, and whose tokens are meant.
func NewTokens(publicKey, sandbox, instance string) (*Tokens, error) {
	key, err := base64.StdEncoding.DecodeString(publicKey)
	if err != nil || len(key) != keyBytes {
		return nil, faults.Invalid("LONGSHORE_AGENT_PUBLIC_KEY", "the public key must be the base64 of %d bytes", keyBytes)
	}
	if sandbox == "" || instance == "" {
		return nil, faults.Invalid("LONGSHORE_AGENT_SANDBOX_ID",
			"LONGSHORE_AGENT_SANDBOX_ID and LONGSHORE_AGENT_INSTANCE must say whose tokens are taken")
	}
	parser := jwt.NewParser(
		jwt.WithValidMethods([]string{"EdDSA"}), jwt.WithIssuer(issuer), jwt.WithAudience(audience),
		jwt.WithExpirationRequired(), jwt.WithSubject(sandbox), jwt.WithLeeway(0),
	)
	return &Tokens{key, instance, parser}, nil
}

type claims struct {
	jwt.RegisteredClaims
	Instance string `json:"instance"`
}

// Check reads the bearer token of a call.
func (t *Tokens) Check(ctx context.Context) error {
	var found claims
	_, err := t.parser.ParseWithClaims(bearer(ctx), &found, func(*jwt.Token) (any, error) { return t.key, nil })
	if err != nil || found.Instance != t.instance {
		return faults.New(faults.PermissionDenied, "the token is not one for this sandbox, or has expired")
	}
	return nil
}

func bearer(ctx context.Context) string {
	received, _ := metadata.FromIncomingContext(ctx)
	for _, value := range received.Get("authorization") {
		return strings.TrimPrefix(value, "Bearer ")
	}
	return ""
}
