package server

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/metadata"

	"longshore.dev/agent/internal/faults"
)

const (
	sandboxID  = "sb-1"
	instanceID = "uid-1"
)

func keys(t *testing.T) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

func goodClaims() jwt.MapClaims {
	return jwt.MapClaims{
		"iss": issuer, "aud": audience, "sub": sandboxID, "instance": instanceID, "exp": time.Now().Add(time.Hour).Unix(),
	}
}

func signed(t *testing.T, method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
	t.Helper()
	token, err := jwt.NewWithClaims(method, claims).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func check(tokens *Tokens, authorization ...string) error {
	return tokens.Check(metadata.NewIncomingContext(context.Background(), metadata.MD{"authorization": authorization}))
}

func checker(t *testing.T, key ed25519.PublicKey) *Tokens {
	t.Helper()
	tokens, err := NewTokens(base64.StdEncoding.EncodeToString(key), sandboxID, instanceID)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func wantDenied(t *testing.T, what string, err error) {
	t.Helper()
	var fault *faults.Error
	if !errors.As(err, &fault) || fault.Kind != faults.PermissionDenied {
		t.Errorf("%s: %v", what, err)
	}
}

func TestTokenOfThisSandboxIsTaken(t *testing.T) {
	public, private := keys(t)
	tokens := checker(t, public)
	for what, audiences := range map[string]any{"one": audience, "several": []string{"other", audience}} {
		claims := goodClaims()
		claims["aud"] = audiences
		if err := check(tokens, "Bearer "+signed(t, jwt.SigningMethodEdDSA, private, claims)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestEachClaimIsNeededAndChecked(t *testing.T) {
	public, private := keys(t)
	tokens := checker(t, public)
	wrong := map[string][]any{
		"iss": {"other", ""}, "aud": {"longshore-scheduler", "", []string{}}, "sub": {"sb-2", "", "sb-1 "},
		"instance": {"uid-2", "", strings.ToUpper(instanceID)}, "exp": {time.Now().Add(-time.Second).Unix(), 0, -1},
	}
	for name, values := range wrong {
		for _, value := range append(values, nil) {
			claims := goodClaims()
			claims[name] = value
			if value == nil {
				delete(claims, name)
			}
			err := check(tokens, "Bearer "+signed(t, jwt.SigningMethodEdDSA, private, claims))
			wantDenied(t, name, err)
		}
	}
}

func TestForgedTokensAreDenied(t *testing.T) {
	public, private := keys(t)
	_, stranger := keys(t)
	tokens := checker(t, public)
	good := signed(t, jwt.SigningMethodEdDSA, private, goodClaims())
	parts := strings.Split(good, ".")
	claims := goodClaims()
	claims["exp"] = time.Now().Add(9 * time.Hour).Unix()
	longer := strings.Split(signed(t, jwt.SigningMethodEdDSA, stranger, claims), ".")
	encoded := base64.StdEncoding.EncodeToString(public)
	for what, token := range map[string]string{
		"another key":              signed(t, jwt.SigningMethodEdDSA, stranger, goodClaims()),
		"no algorithm":             signed(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, goodClaims()),
		"HS256 by the public key":  signed(t, jwt.SigningMethodHS256, []byte(public), goodClaims()),
		"HS256 by its base64":      signed(t, jwt.SigningMethodHS256, []byte(encoded), goodClaims()),
		"HS512 by the public key":  signed(t, jwt.SigningMethodHS512, []byte(public), goodClaims()),
		"no signature":             parts[0] + "." + parts[1] + ".",
		"claims of another":        parts[0] + "." + longer[1] + "." + parts[2],
		"header without algorithm": base64.RawURLEncoding.EncodeToString([]byte(`{"typ":"JWT"}`)) + "." + parts[1] + "." + parts[2],
		"two parts":                parts[0] + "." + parts[1],
		"no token":                 "",
		"no base64":                "a.b.c",
	} {
		wantDenied(t, what, check(tokens, "Bearer "+token))
	}
	wantDenied(t, "nothing", check(tokens))
	wantDenied(t, "no metadata", tokens.Check(context.Background()))
	wantDenied(t, "another scheme", check(tokens, "Basic "+good))
}

func TestBadPublicKeysEndTheStart(t *testing.T) {
	for _, key := range []string{"", "?", "AAAA", base64.StdEncoding.EncodeToString(make([]byte, 33))} {
		if _, err := NewTokens(key, sandboxID, instanceID); err == nil {
			t.Errorf("%q was taken", key)
		}
	}
}
