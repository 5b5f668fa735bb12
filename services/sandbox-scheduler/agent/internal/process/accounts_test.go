package process

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

const (
	somePasswd = "# a comment\nroot:x:0:0:root:/root:/bin/sh\r\n\nbroken:x:nan:5:::\nshort:x:7\n" +
		"ann:x:1000:100:Ann,,,:/home/ann:/bin/sh\nbob:x:1001:1001::\nbob:x:1001:1001:::/bin/sh\n+::::::\nbig:x:4294967296:0::/:\n"
	someGroup = "root:x:0:\nusers:x:100:ann\nwheel:x:10:bob,ann\nanna:x:11:anna,xann\nbad:x:nan:ann\ncut:x\nnumbers:x:12:1000\n"
)

func written(t *testing.T, name, text string) string {
	t.Helper()
	path := t.TempDir() + "/" + name
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func databases(t *testing.T) (string, string) {
	t.Helper()
	return written(t, "passwd", somePasswd), written(t, "group", someGroup)
}

func TestAccounts(t *testing.T) {
	passwd, group := databases(t)
	ann := Account{UID: 1000, GID: 100, Groups: []uint32{10}, Home: "/home/ann"}
	for user, want := range map[string]Account{
		"": {Home: "/root"}, "root": {Home: "/root"}, "0": {Home: "/root"}, "ann": ann, "1000": ann,
		"bob":        {UID: 1001, GID: 1001, Groups: []uint32{10}, Home: "/"},
		"4242":       {UID: 4242, GID: 4242, Home: "/"},
		"4242:":      {UID: 4242, GID: 4242, Home: "/"},
		"4242:10":    {UID: 4242, GID: 10, Home: "/"},
		"4242:wheel": {UID: 4242, GID: 10, Home: "/"}, "0:4243": {GID: 4243, Home: "/root"},
		"4294967295": {UID: 4294967295, GID: 4294967295, Home: "/"},
	} {
		if got, err := FindAccount(user, passwd, group); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v %v", user, got, err)
		}
	}
	if got, err := FindAccount("ann:anna", passwd, group); err != nil || got.UID != 1000 || got.GID != 11 {
		t.Errorf("%+v %v", got, err)
	}
}

func TestUnknownAccountsAreRefused(t *testing.T) {
	passwd, group := databases(t)
	for user, words := range map[string]string{
		"ghost": `user "ghost"`, "ghost:wheel": `user "ghost"`, "ann:ghosts": `group "ghosts"`, "-1": `user "-1"`,
		"4294967296": "user", "ann:-1": "group", "broken": "user", "short": "user", "big": "user", ":wheel": "user", "Ann": "user",
		"ann:bad": "group", "ann:cut": "group", "# a comment": "user",
	} {
		if got, err := FindAccount(user, passwd, group); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %+v %v", user, got, err)
		}
	}
}

// A scratch image has neither file.
func TestAccountsWithoutDatabases(t *testing.T) {
	no := t.TempDir() + "/no"
	for user, want := range map[string]Account{
		"": {Home: "/root"}, "root": {Home: "/root"}, "1000:1": {UID: 1000, GID: 1, Home: "/"},
	} {
		if got, err := FindAccount(user, no, no); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v %v", user, got, err)
		}
	}
	for _, user := range []string{"ann", "0:wheel"} {
		if _, err := FindAccount(user, no, no); err == nil {
			t.Errorf("%q was taken", user)
		}
	}
}
