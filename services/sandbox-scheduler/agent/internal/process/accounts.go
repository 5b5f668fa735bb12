package process

import (
	"os"
	"strconv"
	"strings"

	"longshore.dev/agent/internal/faults"
)

// Account is who a command runs as.
type Account struct {
	UID, GID uint32
	Groups   []uint32
	Home     string
}

// FindAccount looks a name or uid up in the container's own files; empty is root. Numbers need no entry.
func FindAccount(user, passwd, group string) (Account, error) {
	name := user
	if name == "" {
		name = "0"
	}
	name, groupName, _ := strings.Cut(name, ":")
	account, login, err := passwdEntry(name, passwd)
	if err != nil {
		return Account{}, err
	}
	groups := lines(group)
	for _, fields := range groups {
		if len(fields) >= 4 && login != "" && contains(strings.Split(fields[3], ","), login) {
			if gid, ok := number(fields[2]); ok && gid != account.GID {
				account.Groups = append(account.Groups, gid)
			}
		}
	}
	if groupName != "" {
		return withGroup(account, groupName, groups)
	}
	return account, nil
}

func passwdEntry(name, passwd string) (Account, string, error) {
	for _, fields := range lines(passwd) {
		if len(fields) < 6 || (fields[0] != name && fields[2] != name) {
			continue
		}
		uid, good := number(fields[2])
		gid, alsoGood := number(fields[3])
		if !good || !alsoGood {
			continue
		}
		home := fields[5]
		if home == "" {
			home = "/"
		}
		return Account{UID: uid, GID: gid, Home: home}, fields[0], nil
	}
	if name == "0" || name == "root" {
		return Account{Home: "/root"}, "root", nil
	}
	if uid, ok := number(name); ok {
		return Account{UID: uid, GID: uid, Home: "/"}, "", nil
	}
	return Account{}, "", faults.Invalid("user", "user %q is not in the image's /etc/passwd", name)
}

func withGroup(account Account, name string, groups [][]string) (Account, error) {
	for _, fields := range groups {
		if len(fields) >= 3 && (fields[0] == name || fields[2] == name) {
			if gid, ok := number(fields[2]); ok {
				account.GID = gid
				return account, nil
			}
		}
	}
	gid, ok := number(name)
	if !ok {
		return Account{}, faults.Invalid("user", "group %q is not in the image's /etc/group", name)
	}
	account.GID = gid
	return account, nil
}

func lines(path string) [][]string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var found [][]string
	for _, line := range strings.Split(string(raw), "\n") {
		found = append(found, strings.Split(strings.TrimRight(line, "\r"), ":"))
	}
	return found
}

func number(text string) (uint32, bool) {
	value, err := strconv.ParseUint(text, 10, 32)
	return uint32(value), err == nil
}

func contains(list []string, wanted string) bool {
	for _, one := range list {
		if one == wanted {
			return true
		}
	}
	return false
}
