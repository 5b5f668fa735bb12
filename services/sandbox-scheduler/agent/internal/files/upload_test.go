package files

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"longshore.dev/agent/internal/faults"
)

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func file(name, data string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), PAXRecords: map[string]string{"TEST.data": data}}
}

func folder(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}
}

func link(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
}

// tarOf packs members; the data of a file comes along in its header.
func tarOf(t *testing.T, members ...tar.Header) []byte {
	t.Helper()
	var packed bytes.Buffer
	writer := tar.NewWriter(&packed)
	for _, member := range members {
		if err := writer.WriteHeader(&member); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write([]byte(member.PAXRecords["TEST.data"])); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

func upload(header Header, data []byte) error {
	if header.Digest == "" {
		header.Digest = digestOf(data)
	}
	one, err := NewUpload(header)
	if err != nil {
		return err
	}
	defer one.Close()
	for part := range slices.Chunk(data, 1000) {
		if _, err := one.Write(part); err != nil {
			return err
		}
	}
	size, err := one.Finish()
	if err == nil && size != int64(len(data)) {
		return errors.New("Finish says another size")
	}
	return err
}

// listing is every path below a folder, with the data of files and the targets of links.
func listing(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		value := "/"
		if entry.Type().IsRegular() {
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			value = string(raw)
		} else if entry.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			value = "-> " + target
		}
		found[strings.TrimPrefix(path, root+"/")] = value
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func wantListing(t *testing.T, root string, want map[string]string) {
	t.Helper()
	found := listing(t, root)
	if len(found) != len(want) {
		t.Errorf("found %v, want %v", found, want)
		return
	}
	for path, value := range want {
		if found[path] != value {
			t.Errorf("found %v, want %v", found, want)
			return
		}
	}
}

func wantKind(t *testing.T, err error, kind faults.Kind, words string) {
	t.Helper()
	var fault *faults.Error
	if !errors.As(err, &fault) || fault.Kind != kind || !strings.Contains(fault.Message, words) {
		t.Errorf("got %v, want %s with %q", err, kind, words)
	}
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestTarsThatCouldLeaveTheFolderChangeNothing(t *testing.T) {
	special := func(kind byte) tar.Header { return tar.Header{Typeflag: kind, Name: "x", Linkname: "ok"} }
	tests := []struct {
		name, words string
		members     []tar.Header
	}{
		{"parent", "leaves the folder", []tar.Header{file("../x", "1")}},
		{"parent inside", "leaves the folder", []tar.Header{file("a/../../x", "1")}},
		{"harmless parent", "leaves the folder", []tar.Header{file("a/../x", "1")}},
		{"parent at the end", "leaves the folder", []tar.Header{folder("a/..")}},
		{"absolute", "leaves the folder", []tar.Header{file("/etc/x", "1")}},
		{"absolute link", "is absolute", []tar.Header{link("x", "/etc/passwd")}},
		{"link out", "leaves the folder", []tar.Header{link("x", "../y")}},
		{"deep link out", "leaves the folder", []tar.Header{link("a/b/x", "../../../y")}},
		{"link out and in", "leaves the folder", []tar.Header{link("x", "../app/y")}},
		{"link out in the middle", "leaves the folder", []tar.Header{link("x", "a/../../y")}},
		{"behind a link", "behind a link", []tar.Header{folder("a"), link("l", "a"), file("l/x", "1")}},
		{"far behind a link", "behind a link", []tar.Header{link("l", "a"), folder("l/m/n/")}},
		{"in place of a link", "behind a link", []tar.Header{link("l", "a"), file("./l", "1")}},
		{"link behind a link", "behind a link", []tar.Header{link("l", "a"), link("l/m", "b")}},
		{"up behind a link", "tar link \"x\"", []tar.Header{link("a/b/l", "../.."), link("x", "a/b/l/../y")}},
		{"up behind a later link", "tar link \"x\"", []tar.Header{link("x", "a/l/../../y"), link("a/l", "..")}},
		{"character device", "device, fifo or hard link", []tar.Header{special(tar.TypeChar)}},
		{"block device", "device, fifo or hard link", []tar.Header{special(tar.TypeBlock)}},
		{"fifo", "device, fifo or hard link", []tar.Header{special(tar.TypeFifo)}},
		{"hard link", "device, fifo or hard link", []tar.Header{file("ok", "1"), special(tar.TypeLink)}},
	}
	for _, replace := range []bool{false, true} {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				root := t.TempDir()
				members := append([]tar.Header{file("first", "1")}, test.members...)
				header := Header{Path: root + "/new/deep/app", Tar: true, Replace: replace}
				wantKind(t, upload(header, tarOf(t, members...)), faults.InvalidSpec, test.words)
				wantListing(t, root, map[string]string{})
			})
		}
	}
}

func TestLinksThatStayInsideAreKept(t *testing.T) {
	root := t.TempDir()
	data := tarOf(t, folder("a/b"), link("a/b/up", "../../c"), link("here", "."), link("dangling", "no/../where"), file("./c", "1"))
	if err := upload(Header{Path: root, Tar: true}, data); err != nil {
		t.Fatal(err)
	}
	wantListing(t, root, map[string]string{
		"a": "/", "a/b": "/", "a/b/up": "-> ../../c", "here": "-> .", "dangling": "-> no/../where", "c": "1",
	})
}

func TestDataThatIsNoTarChangesNothing(t *testing.T) {
	whole := tarOf(t, file("x", strings.Repeat("x", 5000)))
	for _, data := range [][]byte{[]byte("no tar"), whole[:3000], bytes.Repeat([]byte{1}, 2048)} {
		root := t.TempDir()
		wantKind(t, upload(Header{Path: root + "/new/app", Tar: true}, data), faults.InvalidSpec, "not an uncompressed tar")
		wantListing(t, root, map[string]string{})
	}
}

func TestWrongDigestLeavesNothing(t *testing.T) {
	packed := tarOf(t, file("x", "1"))
	for _, test := range []struct {
		header Header
		data   []byte
	}{
		{Header{Digest: digestOf([]byte("other"))}, []byte("data")},
		{Header{Digest: strings.ToUpper(digestOf([]byte("data")))}, []byte("data")},
		{Header{Digest: digestOf([]byte("other")), Tar: true}, packed},
		{Header{Digest: digestOf(packed[1:]), Tar: true, Replace: true}, packed},
	} {
		root := t.TempDir()
		write(t, root+"/kept", "before")
		for _, path := range []string{"/new/deep/x", "/kept"} {
			test.header.Path = root + path
			wantKind(t, upload(test.header, test.data), faults.InvalidSpec, "nothing was changed")
			wantListing(t, root, map[string]string{"kept": "before"})
		}
	}
}

func TestMissingDigestIsRefused(t *testing.T) {
	root := t.TempDir()
	one, err := NewUpload(Header{Path: root + "/x"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = one.Finish()
	one.Close()
	wantKind(t, err, faults.InvalidSpec, "the header says nothing")
	wantListing(t, root, map[string]string{})
}

func TestAbandonedUploadLeavesNothing(t *testing.T) {
	root := t.TempDir()
	one, err := NewUpload(Header{Path: root + "/a/b"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	one.Close()
	wantListing(t, root, map[string]string{})
}

func TestFileIsPlacedWithItsModeAndParents(t *testing.T) {
	root := t.TempDir()
	for mode, want := range map[uint32]fs.FileMode{0: 0o644, 0o755: 0o755, 0o4711: 0o711} {
		if err := upload(Header{Path: root + "/a/./b//x", Mode: mode}, []byte("data")); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(root + "/a/b/x")
		if err != nil || info.Mode() != want {
			t.Errorf("mode %o: %v %v", mode, info.Mode(), err)
		}
	}
	wantListing(t, root, map[string]string{"a": "/", "a/b": "/", "a/b/x": "data"})
}

func TestReadersOfAReplacedFileKeepTheOldOne(t *testing.T) {
	path := t.TempDir() + "/x"
	write(t, path, "before")
	open, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := upload(Header{Path: path}, []byte("after it")); err != nil {
		t.Fatal(err)
	}
	seen := make([]byte, 100)
	if count, _ := open.Read(seen); string(seen[:count]) != "before" {
		t.Errorf("an open file changed to %q", seen[:count])
	}
}

func TestFileReplacesALinkAndNotWhatItNames(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/outside/secret", "1")
	for _, target := range []string{"outside/secret", "outside", "nowhere"} {
		_ = os.Remove(root + "/l")
		if err := os.Symlink(target, root+"/l"); err != nil {
			t.Fatal(err)
		}
		if err := upload(Header{Path: root + "/l"}, []byte("new")); err != nil {
			t.Fatal(err)
		}
		wantListing(t, root, map[string]string{"outside": "/", "outside/secret": "1", "l": "new"})
	}
}

func TestFileInPlaceOfAFolderOrBelowAFileIsRefused(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/d/x", "1")
	wantKind(t, upload(Header{Path: root + "/d"}, []byte("2")), faults.InvalidSpec, "is a folder")
	if err := upload(Header{Path: root + "/d/x/y"}, []byte("2")); err == nil {
		t.Error("a file was made below a file")
	}
	wantListing(t, root, map[string]string{"d": "/", "d/x": "1"})
}

func TestPathsMustBeAbsoluteWithoutParents(t *testing.T) {
	for _, path := range []string{"", "x", "./x", "/a/../x", "/..", "/a\x00b", "../x"} {
		_, stat := Stat(path)
		_, download := Download(path, false, 0, func([]byte) error { return nil })
		for _, err := range []error{upload(Header{Path: path}, []byte("1")), stat, download, Remove([]string{path})} {
			wantKind(t, err, faults.InvalidSpec, "must be absolute")
		}
	}
	wantKind(t, upload(Header{Path: "//", Tar: true, Replace: true}, nil), faults.InvalidSpec, "root folder")
}

func TestTarIsMergedIntoAFolder(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/app/old", "old")
	write(t, root+"/app/d/kept", "kept")
	write(t, root+"/app/d/x", "before")
	if err := os.Symlink("/etc/passwd", root+"/app/l"); err != nil {
		t.Fatal(err)
	}
	data := tarOf(t, folder("."), folder("d"), file("d/x", "after"), file("l", "a file"), file("e/f/g", "deep"))
	if err := upload(Header{Path: root + "/app", Tar: true}, data); err != nil {
		t.Fatal(err)
	}
	wantListing(t, root+"/app", map[string]string{
		"old": "old", "d": "/", "d/kept": "kept", "d/x": "after", "l": "a file", "e": "/", "e/f": "/", "e/f/g": "deep",
	})
	wantListing(t, root, map[string]string{
		"app": "/", "app/old": "old", "app/d": "/", "app/d/kept": "kept", "app/d/x": "after", "app/l": "a file",
		"app/e": "/", "app/e/f": "/", "app/e/f/g": "deep",
	})
}

func TestPlantedLinksAreNotFollowed(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/outside/x", "1")
	write(t, root+"/app/f", "file")
	for name, target := range map[string]string{"app/l": "../outside", "whole": "outside"} {
		if err := os.Symlink(target, root+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	before := listing(t, root)
	for _, test := range []struct {
		path, words string
		member      tar.Header
	}{
		{"/app", "no folder", file("l/x", "2")},
		{"/app", "no folder", folder("l")},
		{"/app", "no folder", folder("l/deep/er")},
		{"/app", "no folder", link("l/y", "x")},
		{"/app", "no folder", file("f/x", "2")},
		{"/whole", "a link is not followed", file("x", "2")},
		{"/app/f", "not a folder", file("x", "2")},
		{"", "would replace the folder", file("outside", "2")},
		{"", "would replace the folder", link("outside", "app")},
	} {
		err := upload(Header{Path: root + test.path, Tar: true}, tarOf(t, file("first", "1"), test.member))
		wantKind(t, err, faults.InvalidSpec, test.words)
		wantListing(t, root, before)
	}
}

func TestReplaceLeavesNothingOfTheOldFolder(t *testing.T) {
	root := t.TempDir()
	data := tarOf(t, file("x", "new"))
	plant := map[string]func(string) error{
		"folder":  func(path string) error { write(t, path+"/old/deep", "1"); return nil },
		"file":    func(path string) error { write(t, path, "1"); return nil },
		"link":    func(path string) error { return os.Symlink(root+"/outside", path) },
		"loop":    func(path string) error { return os.Symlink("loop", path) },
		"nothing": func(string) error { return nil },
	}
	write(t, root+"/outside/x", "1")
	want := map[string]string{"outside": "/", "outside/x": "1"}
	for name, make := range plant {
		if err := make(root + "/" + name); err != nil {
			t.Fatal(err)
		}
		if err := upload(Header{Path: root + "/" + name, Tar: true, Replace: true}, data); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want[name], want[name+"/x"] = "/", "new"
	}
	wantListing(t, root, want)
}

func TestRefillReplacesWhatCannotBeRenamed(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/staged/d/x", "new")
	write(t, root+"/app/d", "was a file")
	write(t, root+"/app/gone/deep", "1")
	if err := refill(root+"/staged", root+"/app"); err != nil {
		t.Fatal(err)
	}
	wantListing(t, root+"/app", map[string]string{"d": "/", "d/x": "new"})
}

func TestFailedCopyIsNeverPutInPlace(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/x", "before")
	unreadable, err := os.OpenFile(root+"/spool", os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	one := &Upload{header: Header{Path: root + "/x"}, spool: unreadable}
	if err := one.placeAcross(0o644); err == nil {
		t.Error("a copy that failed was taken for a file")
	}
	one.Close()
	wantListing(t, root, map[string]string{"x": "before"})
}

func TestCopyAcrossKeepsDataAndMode(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/from", "data")
	if err := os.Chmod(root+"/from", 0o751); err != nil {
		t.Fatal(err)
	}
	write(t, root+"/to", "before")
	if err := copyFile(root+"/from", root+"/to"); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(root + "/to"); err != nil || info.Mode() != 0o751 {
		t.Errorf("%v %v", info, err)
	}
	wantListing(t, root, map[string]string{"from": "data", "to": "data"})
}

// Whatever names and targets a tar has: what is accepted stays in its folder, and what is refused changes nothing.
func FuzzTarStaysInItsFolder(f *testing.F) {
	for _, seed := range [][3]string{
		{"a/b", "../c", "x"}, {"l", "a", "l/x"}, {"l", "..", "x"}, {"a/l", "b/../../..", "x"}, {".", "..", "x"},
		{"a//b/./l", ".//..", "a/b/l"}, {"l", "./a/../l", "l"}, {"..a", "..b", "..."}, {"", "", ""}, {"l", "/", "./l/"},
		{"a", "b", "a/"}, {"a\\..\\b", "..\\..", "C:x"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, name, target, second string) {
		var packed bytes.Buffer
		writer := tar.NewWriter(&packed)
		for _, member := range []tar.Header{folder("a"), link(name, target), file(second, "")} {
			member.Format = tar.FormatPAX
			if writer.WriteHeader(&member) != nil {
				t.Skip("no tar can hold that")
			}
		}
		if writer.Close() != nil {
			t.Skip("no tar can hold that")
		}
		root := t.TempDir()
		write(t, root+"/outside", "1")
		err := upload(Header{Path: root + "/app", Tar: true}, packed.Bytes())
		for path, value := range listing(t, root) {
			if path != "outside" && path != "app" && !strings.HasPrefix(path, "app/") {
				t.Fatalf("%q -> %q, %q made %s", name, target, second, path)
			}
			if strings.HasPrefix(value, "-> ") {
				end := filepath.Join(root, filepath.Dir(path), strings.TrimPrefix(value, "-> "))
				if end != root+"/app" && !strings.HasPrefix(end, root+"/app/") {
					t.Fatalf("%q -> %q leads to %s", name, target, end)
				}
			}
		}
		if err != nil && exists(root+"/app") {
			t.Fatalf("%q -> %q, %q was refused (%v) and changed something", name, target, second, err)
		}
	})
}
