package output

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// The buffer against a plain one that keeps all, over random writes.
func TestHeadAndTailOfRandomWrites(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 3000 {
		limit := random.IntN(40)
		buffer, whole := NewBuffer(limit), []byte{}
		for range random.IntN(12) {
			data := make([]byte, random.IntN(20))
			for index := range data {
				data[index] = byte(random.IntN(256))
			}
			buffer.Append(data)
			whole = append(whole, data...)
		}
		head := whole[:min(len(whole), limit-limit/2)]
		rest := whole[len(head):]
		tail := rest[max(0, len(rest)-limit/2):]
		if got := buffer.HeadFrom(0); !bytes.Equal(got, head) {
			t.Fatalf("round %d: head %v, want %v", round, got, head)
		}
		first, got := buffer.TailFrom(0)
		if !bytes.Equal(got, tail) {
			t.Fatalf("round %d: tail %v, want %v", round, got, tail)
		}
		if len(tail) > 0 && first != int64(len(whole)-len(tail)) {
			t.Fatalf("round %d: tail starts at %d", round, first)
		}
		if buffer.Total() != int64(len(whole)) || buffer.Truncated() != (len(head)+len(tail) < len(whole)) {
			t.Fatalf("round %d: total %d, truncated %v", round, buffer.Total(), buffer.Truncated())
		}
		if offset := int64(random.IntN(len(whole) + 1)); offset > int64(len(whole)-len(tail)) {
			if _, got := buffer.TailFrom(offset); !bytes.Equal(got, whole[offset:]) {
				t.Fatalf("round %d: from %d: %v", round, offset, got)
			}
		}
	}
}
