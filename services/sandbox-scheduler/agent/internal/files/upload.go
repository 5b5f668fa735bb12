package files

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"longshore.dev/agent/internal/faults"
)

// Header says what an upload is.
type Header struct {
	Path    string
	Digest  string
	Tar     bool
	Mode    uint32
	Replace bool
}

// Upload takes data into a spool file; nothing changes before Finish has checked the digest.
type Upload struct {
	header Header
	spool  *os.File
	hash   hash.Hash
	size   int64
}

// NewUpload opens the spool near the destination, so that a single file can be renamed into place.
func NewUpload(header Header) (*Upload, error) {
	clean, err := checked(header.Path)
	if err != nil {
		return nil, err
	}
	header.Path = clean
	if header.Tar && header.Replace && clean == "/" {
		return nil, invalid("the root folder cannot be replaced")
	}
	if !header.Tar && isFolder(clean) {
		return nil, invalid("%s is a folder; name a file in it", clean)
	}
	name := temporary(existingAbove(filepath.Dir(clean)))
	spool, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, mapped(err)
	}
	return &Upload{header: header, spool: spool, hash: sha256.New()}, nil
}

// Write adds data.
func (u *Upload) Write(data []byte) (int, error) {
	_, _ = u.hash.Write(data)
	u.size += int64(len(data))
	count, err := u.spool.Write(data)
	return count, mapped(err)
}

// Close removes the spool, if it is still there.
func (u *Upload) Close() {
	_ = u.spool.Close()
	_ = os.Remove(u.spool.Name())
}

// Finish checks the digest and applies; how many bytes came.
func (u *Upload) Finish() (int64, error) {
	found := "sha256:" + hex.EncodeToString(u.hash.Sum(nil))
	if u.header.Digest != found {
		said := u.header.Digest
		if said == "" {
			said = "nothing"
		}
		return 0, faults.Invalid("digest",
			"upload to %s: the data has digest %s, the header says %s; nothing was changed", u.header.Path, found, said)
	}
	if u.header.Tar {
		return u.size, mapped(u.unpack())
	}
	return u.size, mapped(u.place())
}

func (u *Upload) place() error {
	mode := fs.FileMode(u.header.Mode & 0o777)
	if mode == 0 {
		mode = 0o644
	}
	if err := u.spool.Chmod(mode); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(u.header.Path), 0o755); err != nil {
		return err
	}
	err := os.Rename(u.spool.Name(), u.header.Path)
	if errors.Is(err, unix.EXDEV) {
		return u.placeAcross(mode)
	}
	return err
}

// placeAcross serves a destination on another file system than the nearest folder above it.
func (u *Upload) placeAcross(mode fs.FileMode) error {
	name := temporary(filepath.Dir(u.header.Path))
	target, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(name) }()
	if _, err = u.spool.Seek(0, io.SeekStart); err == nil {
		_, err = io.Copy(target, u.spool)
	}
	err = errors.Join(err, target.Chmod(mode), target.Close())
	if err != nil {
		return err
	}
	return os.Rename(name, u.header.Path)
}

func (u *Upload) unpack() error {
	members, err := u.members()
	if err != nil {
		return err
	}
	if err := refuseLinksBelow(u.header, members); err != nil {
		return err
	}
	folder := filepath.Dir(u.header.Path)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	staged := temporary(folder)
	if err := os.Mkdir(staged, 0o755); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(staged) }()
	if err := u.extract(staged); err != nil {
		return err
	}
	return apply(staged, u.header.Path, u.header.Replace)
}

func (u *Upload) reader() (*tar.Reader, error) {
	_, err := u.spool.Seek(0, io.SeekStart)
	return tar.NewReader(u.spool), err
}

// members reads all headers and refuses what could leave the folder.
func (u *Upload) members() ([]*tar.Header, error) {
	reader, err := u.reader()
	if err != nil {
		return nil, err
	}
	var members []*tar.Header
	links := map[string]string{}
	for {
		member, err := reader.Next()
		if err == io.EOF {
			return members, refuseDetours(links)
		}
		if err != nil {
			return nil, invalid("the data is not an uncompressed tar: %v", err)
		}
		if err := checkMember(member, links); err != nil {
			return nil, err
		}
		members = append(members, member)
	}
}

func checkMember(member *tar.Header, links map[string]string) error {
	if path.IsAbs(member.Name) || hasParent(member.Name) || strings.Contains(member.Name, "\x00") {
		return invalid("tar entry %q leaves the folder", member.Name)
	}
	entry := path.Clean(member.Name)
	for above := entry; above != "."; above = path.Dir(above) {
		if _, behind := links[above]; behind {
			return invalid("tar entry %q lies behind a link of the same tar", member.Name)
		}
	}
	switch member.Typeflag {
	case tar.TypeSymlink:
		links[entry] = member.Linkname
		return checkLink(entry, member.Linkname)
	case tar.TypeReg, tar.TypeDir:
		return nil
	}
	return invalid("tar entry %q is a device, fifo or hard link", member.Name)
}

func checkLink(entry, target string) error {
	if path.IsAbs(target) {
		return invalid("tar link %q -> %q is absolute", entry, target)
	}
	depth := strings.Count(entry, "/")
	for _, part := range strings.Split(target, "/") {
		switch part {
		case "", ".":
		case "..":
			depth--
		default:
			depth++
		}
		if depth < 0 {
			return invalid("tar link %q -> %q leaves the folder", entry, target)
		}
	}
	return nil
}

// refuseDetours: a ".." behind another link of the tar goes up from where that one leads, which checkLink can't see.
func refuseDetours(links map[string]string) error {
	for entry, target := range links {
		at, behind := path.Dir(entry), false
		for _, part := range strings.Split(target, "/") {
			if part == ".." && behind {
				return invalid("tar link %q -> %q goes up behind a link of the same tar", entry, target)
			}
			at = path.Join(at, part)
			if _, isLink := links[at]; isLink {
				behind = true
			}
		}
	}
	return nil
}

func refuseLinksBelow(header Header, members []*tar.Header) error {
	if header.Replace {
		return nil
	}
	if exists(header.Path) && !isFolder(header.Path) {
		return invalid("%s is not a folder (a link is not followed); ask to replace it", header.Path)
	}
	for _, member := range members {
		entry := path.Clean(member.Name)
		folder := path.Dir(entry)
		if member.Typeflag == tar.TypeDir {
			folder = entry
		}
		for above := folder; above != "."; above = path.Dir(above) {
			below := filepath.Join(header.Path, above)
			if exists(below) && !isFolder(below) {
				return invalid("tar entry %q passes %s, which is no folder", member.Name, below)
			}
		}
		if target := filepath.Join(header.Path, entry); member.Typeflag != tar.TypeDir && isFolder(target) {
			return invalid("tar entry %q would replace the folder %s", member.Name, target)
		}
	}
	return nil
}

func (u *Upload) extract(root string) error {
	reader, err := u.reader()
	if err != nil {
		return err
	}
	for {
		member, err := reader.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := extractOne(reader, member, root); err != nil {
			return err
		}
	}
}

func extractOne(reader io.Reader, member *tar.Header, root string) error {
	entry := path.Clean(member.Name)
	if entry == "." {
		return nil
	}
	target := filepath.Join(root, entry)
	mode := fs.FileMode(member.Mode & 0o777)
	if member.Typeflag == tar.TypeDir {
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		return os.Chmod(target, mode|0o700)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if member.Typeflag == tar.TypeSymlink {
		return os.Symlink(member.Linkname, target)
	}
	file, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, reader)
	return errors.Join(err, file.Chmod(mode), file.Close())
}

func apply(staged, target string, replace bool) error {
	if !exists(target) {
		return os.Rename(staged, target)
	}
	if !replace {
		return merge(staged, target)
	}
	if !isFolder(target) {
		if err := os.Remove(target); err != nil {
			return err
		}
		return os.Rename(staged, target)
	}
	err := unix.Renameat2(unix.AT_FDCWD, staged, unix.AT_FDCWD, target, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EBUSY):
		// A folder of a lower layer, or a mount point, cannot be renamed.
		return refill(staged, target)
	}
	return err
}

func refill(staged, target string) error {
	entries, err := os.ReadDir(target)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := removeOne(filepath.Join(target, entry.Name())); err != nil {
			return err
		}
	}
	return merge(staged, target)
}

func merge(staged, target string) error {
	entries, err := os.ReadDir(staged)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		from, to := filepath.Join(staged, entry.Name()), filepath.Join(target, entry.Name())
		if entry.IsDir() && isFolder(to) {
			err = merge(from, to)
		} else {
			err = move(from, to)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// move renames; where a mount lies between, it copies.
func move(from, to string) error {
	err := os.Rename(from, to)
	if !errors.Is(err, unix.EXDEV) {
		return err
	}
	if isFolder(from) {
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		return merge(from, to)
	}
	if isLink(from) {
		link, err := os.Readlink(from)
		if err != nil {
			return err
		}
		_ = os.Remove(to)
		return os.Symlink(link, to)
	}
	return copyFile(from, to)
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	name := temporary(filepath.Dir(to))
	target, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	err = errors.Join(err, target.Chmod(info.Mode().Perm()), target.Close())
	if err == nil {
		err = os.Rename(name, to)
	}
	if err != nil {
		_ = os.Remove(name)
	}
	return err
}
