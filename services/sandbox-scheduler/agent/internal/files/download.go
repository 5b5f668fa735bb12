package files

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"longshore.dev/agent/internal/faults"
)

// DefaultMaxBytes bounds a download whose caller names no bound.
const DefaultMaxBytes = 64 << 20

const block = 1 << 20

type bounded struct {
	hand    func([]byte) error
	hash    io.Writer
	buffer  []byte
	written int64
	limit   int64
	name    string
}

func (b *bounded) Write(data []byte) (int, error) {
	b.written += int64(len(data))
	if b.written > b.limit {
		return 0, b.tooLarge()
	}
	_, _ = b.hash.Write(data)
	b.buffer = append(b.buffer, data...)
	if len(b.buffer) >= block {
		return len(data), b.flush()
	}
	return len(data), nil
}

func (b *bounded) tooLarge() error {
	return faults.New(faults.QuotaExceeded, "%s is larger than the %d bytes that were asked for", b.name, b.limit).
		With("which", "max_bytes")
}

func (b *bounded) flush() error {
	if len(b.buffer) == 0 {
		return nil
	}
	err := b.hand(b.buffer)
	b.buffer = make([]byte, 0, block)
	return err
}

// Download hands over a file's bytes, or a folder as tar; then their digest.
func Download(name string, asTar bool, maxBytes int64, hand func([]byte) error) (string, error) {
	if maxBytes < 0 {
		return "", faults.Invalid("max_bytes", "max_bytes is %d; it must not be negative", maxBytes)
	}
	name, err := checked(name)
	if err != nil {
		return "", err
	}
	if maxBytes == 0 {
		maxBytes = DefaultMaxBytes
	}
	sum := sha256.New()
	sink := &bounded{hand: hand, hash: sum, limit: maxBytes, name: name}
	if asTar {
		err = writeTar(name, sink)
	} else {
		err = writeFile(name, sink)
	}
	if err == nil {
		err = sink.flush()
	}
	if err != nil {
		return "", mapped(err)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

func openRegular(name string) (*os.File, fs.FileInfo, error) {
	// Without waiting for the other end of a fifo.
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil, faults.New(faults.NotFound, "%s does not exist in the sandbox", name)
	}
	if err != nil {
		return nil, nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	file := os.NewFile(uintptr(fd), name)
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = invalid("%s is not a regular file", name)
	}
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

func writeFile(name string, sink *bounded) error {
	file, info, err := openRegular(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if info.Size() > sink.limit {
		return sink.tooLarge()
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{sink}, struct{ io.Reader }{file}, make([]byte, block))
	return err
}

func writeTar(name string, sink *bounded) error {
	if !exists(name) {
		return faults.New(faults.NotFound, "%s does not exist in the sandbox", name)
	}
	if !isFolder(name) {
		return invalid("%s is not a folder", name)
	}
	writer := tar.NewWriter(sink)
	if err := addFolder(writer, name, ""); err != nil {
		return err
	}
	return writer.Close()
}

func addFolder(writer *tar.Writer, folder, prefix string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := addEntry(writer, filepath.Join(folder, entry.Name()), prefix+entry.Name()); err != nil {
			return err
		}
	}
	return nil
}

func addEntry(writer *tar.Writer, path, name string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	header := &tar.Header{
		Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime().Truncate(time.Second), Format: tar.FormatPAX,
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		header.Typeflag = tar.TypeSymlink
		if header.Linkname, err = os.Readlink(path); err != nil {
			return err
		}
		return writer.WriteHeader(header)
	case info.IsDir():
		header.Typeflag = tar.TypeDir
		header.Name += "/"
		if err := writer.WriteHeader(header); err != nil {
			return err
		}
		return addFolder(writer, path, name+"/")
	case info.Mode().IsRegular():
		return addFile(writer, header, path)
	}
	return nil
}

func addFile(writer *tar.Writer, header *tar.Header, path string) error {
	file, info, err := openRegular(path)
	if err != nil {
		return err
	}
	defer file.Close()
	header.Typeflag, header.Size = tar.TypeReg, info.Size()
	if err := writer.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.CopyN(writer, file, info.Size())
	return err
}
