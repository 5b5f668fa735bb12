// Package files moves files in and out of the sandbox: atomic, digest-checked, never outside the folder that was named.
package files

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"longshore.dev/agent/internal/faults"
)

func invalid(format string, args ...any) error { return faults.Invalid("path", format, args...) }

// checked is a clean absolute path.
func checked(name string) (string, error) {
	if !strings.HasPrefix(name, "/") || strings.Contains(name, "\x00") || hasParent(name) {
		return "", invalid("path %q must be absolute and without '..'", name)
	}
	return path.Clean(name), nil
}

func hasParent(name string) bool {
	for _, part := range strings.Split(name, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

func temporary(folder string) string {
	var random [8]byte
	_, _ = rand.Read(random[:])
	return filepath.Join(folder, ".longshore-"+hex.EncodeToString(random[:]))
}

// existingAbove is the nearest folder at or above a path that is there: what is spooled there can be renamed into place.
func existingAbove(name string) string {
	for folder := name; ; folder = filepath.Dir(folder) {
		if info, err := os.Stat(folder); (err == nil && info.IsDir()) || folder == "/" {
			return folder
		}
	}
}

func isLink(name string) bool {
	info, err := os.Lstat(name)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// isFolder is false for a link to a folder.
func isFolder(name string) bool {
	info, err := os.Lstat(name)
	return err == nil && info.IsDir()
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// mapped turns an error of the file system into one of the tree.
func mapped(err error) error {
	var fault *faults.Error
	if err == nil || errors.As(err, &fault) {
		return err
	}
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT, unix.EFBIG} {
		if errors.Is(err, full) {
			return faults.New(faults.QuotaExceeded, "no space for it in the sandbox: %v", err).With("which", "disk")
		}
	}
	for _, missing := range []error{fs.ErrNotExist, unix.ENOTDIR} {
		if errors.Is(err, missing) {
			return faults.New(faults.NotFound, "%v", err)
		}
	}
	return invalid("%v", err)
}

// Info is what is known of a path; Kind is "file", "dir", "symlink" or "other".
type Info struct {
	Exists bool
	Kind   string
	Size   int64
	Mode   uint32
}

// Stat looks at a path, links not followed.
func Stat(name string) (Info, error) {
	name, err := checked(name)
	if err != nil {
		return Info{}, err
	}
	var status unix.Stat_t
	err = unix.Lstat(name, &status)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return Info{}, nil
	}
	if err != nil {
		return Info{}, mapped(&fs.PathError{Op: "stat", Path: name, Err: err})
	}
	kinds := map[uint32]string{unix.S_IFREG: "file", unix.S_IFDIR: "dir", unix.S_IFLNK: "symlink"}
	kind, known := kinds[status.Mode&unix.S_IFMT]
	if !known {
		kind = "other"
	}
	return Info{true, kind, status.Size, status.Mode & 0o7777}, nil
}

// Remove removes files, links and whole folders; what is not there is no error.
func Remove(names []string) error {
	var clean []string
	for _, name := range names {
		name, err := checked(name)
		if err != nil {
			return err
		}
		if name == "/" {
			return invalid("the root folder cannot be removed")
		}
		clean = append(clean, name)
	}
	for _, name := range clean {
		if err := removeOne(name); err != nil {
			return mapped(err)
		}
	}
	return nil
}

func removeOne(name string) error {
	err := os.RemoveAll(name)
	if errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}
