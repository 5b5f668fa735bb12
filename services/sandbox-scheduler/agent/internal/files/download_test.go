package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longshore.dev/agent/internal/faults"
)

func download(t *testing.T, path string, asTar bool, limit int64) ([]byte, error) {
	t.Helper()
	var got []byte
	digest, err := Download(path, asTar, limit, func(part []byte) error {
		if len(part) == 0 || len(part) > 2*block {
			t.Errorf("a part of %d bytes", len(part))
		}
		got = append(got, part...)
		return nil
	})
	if err == nil && digest != digestOf(got) {
		t.Errorf("the digest is not that of the data")
	}
	return got, err
}

func TestDownloadIsWholeOrAnError(t *testing.T) {
	path := t.TempDir() + "/x"
	for _, size := range []int{0, 1, block - 1, block, 3*block + 7} {
		data := bytes.Repeat([]byte("abcdefg"), size/7+1)[:size]
		write(t, path, string(data))
		got, err := download(t, path, false, int64(max(size, 1)))
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes: got %d, %v", size, len(got), err)
		}
		if size > 1 {
			got, err = download(t, path, false, int64(size-1))
			wantKind(t, err, faults.QuotaExceeded, "larger than")
			if len(got) > 0 {
				t.Errorf("%d bytes of a file that is too large", len(got))
			}
		}
	}
	_, err := download(t, path, false, -1)
	wantKind(t, err, faults.InvalidSpec, "max_bytes")
}

func TestEndlessFilesAreBoundedThoughTheySayNoSize(t *testing.T) {
	got, err := download(t, "/proc/self/maps", false, 10)
	wantKind(t, err, faults.QuotaExceeded, "larger than")
	if len(got) > 10 {
		t.Errorf("%d bytes", len(got))
	}
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	root := t.TempDir()
	if err := unix.Mkfifo(root+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"to-fifo": "fifo", "loop": "loop"} {
		if err := os.Symlink(target, root+"/"+link); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, path := range []string{root + "/fifo", root + "/to-fifo", "/dev/zero", root} {
			_, err := download(t, path, false, 0)
			wantKind(t, err, faults.InvalidSpec, "not a regular file")
		}
		_, err := download(t, root+"/loop", false, 0)
		wantKind(t, err, faults.InvalidSpec, "loop")
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("a fifo is waited for")
	}
}

func TestDownloadOfNothing(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/x", "1")
	for _, path := range []string{root + "/no", root + "/no/deeper", root + "/x/y"} {
		for _, asTar := range []bool{false, true} {
			_, err := download(t, path, asTar, 0)
			wantKind(t, err, faults.NotFound, path)
		}
	}
	_, err := download(t, root+"/x", true, 0)
	wantKind(t, err, faults.InvalidSpec, "not a folder")
}

func TestFolderComesBackAsItWas(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/app/d/x", strings.Repeat("x", 2*block))
	write(t, root+"/app/script", "#!")
	if err := errors.Join(
		os.Chmod(root+"/app/script", 0o755), os.Mkdir(root+"/app/empty", 0o700),
		os.Symlink("/etc/passwd", root+"/app/out"), os.Symlink("d/x", root+"/app/in"),
	); err != nil {
		t.Fatal(err)
	}
	before := listing(t, root+"/app")
	if err := unix.Mkfifo(root+"/app/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	packed, err := download(t, root+"/app", true, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]byte{}
	for reader := tar.NewReader(bytes.NewReader(packed)); ; {
		member, err := reader.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names[member.Name] = member.Typeflag
		if member.Name == "script" && member.Mode != 0o755 {
			t.Errorf("mode %o", member.Mode)
		}
	}
	if len(names) != len(before) || names["out"] != tar.TypeSymlink || names["empty/"] != tar.TypeDir {
		t.Errorf("packed %v of %v", names, before)
	}
	if err := os.Remove(root + "/app/out"); err != nil {
		t.Fatal(err)
	}
	packed, err = download(t, root+"/app", true, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := upload(Header{Path: root + "/copy", Tar: true}, packed); err != nil {
		t.Fatal(err)
	}
	delete(before, "out")
	wantListing(t, root+"/copy", before)
	_, err = download(t, root+"/app", true, 2*block)
	wantKind(t, err, faults.QuotaExceeded, "larger than")
}

func TestDownloadEndsWhenNobodyTakesIt(t *testing.T) {
	path := t.TempDir() + "/x"
	write(t, path, strings.Repeat("x", 3*block))
	calls := 0
	_, err := Download(path, false, 0, func([]byte) error { calls++; return io.ErrClosedPipe })
	if err == nil || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

func TestStat(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/x", "123")
	if err := errors.Join(
		os.Chmod(root+"/x", 0o640), os.Chmod(root+"/x", 0o640|os.ModeSetuid), os.Symlink("nowhere", root+"/l"),
		unix.Mkfifo(root+"/fifo", 0o600), os.Mkdir(root+"/d", 0o700),
	); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]Info{
		"/x": {true, "file", 3, 0o4640}, "/l": {true, "symlink", 7, 0o777}, "/no": {}, "/x/below": {}, "/no/below": {},
		"/x/": {true, "file", 3, 0o4640},
	} {
		if got, err := Stat(root + path); err != nil || got != want {
			t.Errorf("%s: %+v %v", path, got, err)
		}
	}
	for path, kind := range map[string]string{root + "/fifo": "other", root + "/d": "dir", "/dev/null": "other", "/": "dir"} {
		if got, err := Stat(path); err != nil || got.Kind != kind {
			t.Errorf("%s: %+v %v", path, got, err)
		}
	}
	_, err := Stat(root + "/" + strings.Repeat("n", 300))
	wantKind(t, err, faults.InvalidSpec, "name too long")
}

func TestRemoveTakesLinksAndNotWhatTheyName(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/outside/x", "1")
	write(t, root+"/d/deep/x", "1")
	write(t, root+"/f", "1")
	if err := errors.Join(os.Symlink("outside", root+"/l"), os.Symlink("../../outside", root+"/d/deep/l")); err != nil {
		t.Fatal(err)
	}
	gone := []string{root + "/l", root + "/d", root + "/no", root + "/no/deeper", root + "/f/below", root + "/f", root + "/f"}
	if err := Remove(gone); err != nil {
		t.Fatal(err)
	}
	wantListing(t, root, map[string]string{"outside": "/", "outside/x": "1"})
}

func TestRemoveChecksAllPathsBeforeTheFirst(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/x", "1")
	for _, bad := range []string{"/", "//", "/.", "relative", "/a/.."} {
		if err := Remove([]string{root + "/x", bad}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	wantListing(t, root, map[string]string{"x": "1"})
}
