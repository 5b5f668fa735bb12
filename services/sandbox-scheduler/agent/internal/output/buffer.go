// Package output keeps what a command writes: always drained, head and tail kept, what is missing known.
package output

// DefaultCap is what is kept of a stream when the caller names no cap, bytes.
const DefaultCap = 1 << 20

// Buffer keeps the first half and the last half of its cap, and counts all. Not safe for concurrent use.
type Buffer struct {
	headCap, tailCap int
	head             []byte
	ring             []byte
	next             int // Where the next byte of the tail goes.
	filled           int
	total            int64
}

// NewBuffer keeps cap bytes.
func NewBuffer(cap int) *Buffer {
	return &Buffer{headCap: cap - cap/2, tailCap: cap / 2}
}

// Append takes what the command wrote next.
func (b *Buffer) Append(data []byte) {
	b.total += int64(len(data))
	if room := b.headCap - len(b.head); room > 0 {
		taken := min(room, len(data))
		b.head = append(b.head, data[:taken]...)
		data = data[taken:]
	}
	if len(data) > 0 && b.tailCap > 0 {
		b.appendTail(data)
	}
}

func (b *Buffer) appendTail(data []byte) {
	if len(data) > b.tailCap {
		data = data[len(data)-b.tailCap:]
	}
	if len(b.ring) < b.tailCap {
		// Grows with what comes, as most commands write little.
		grow := min(b.tailCap-len(b.ring), len(data))
		if b.filled == len(b.ring) && b.next == len(b.ring)%b.tailCap {
			b.ring = append(b.ring, data[:grow]...)
			b.filled += grow
			b.next = len(b.ring) % b.tailCap
			data = data[grow:]
		}
	}
	for len(data) > 0 {
		copied := copy(b.ring[b.next:], data)
		b.next = (b.next + copied) % b.tailCap
		b.filled = min(b.filled+copied, b.tailCap)
		data = data[copied:]
	}
}

// Total is how much was written, before truncation.
func (b *Buffer) Total() int64 { return b.total }

// Kept is how much is held.
func (b *Buffer) Kept() int { return len(b.head) + b.filled }

// Truncated says whether bytes between head and tail are gone.
func (b *Buffer) Truncated() bool { return b.total > int64(b.Kept()) }

// HeadFrom is what of the head lies at or after an offset; the head never changes once written.
func (b *Buffer) HeadFrom(offset int64) []byte {
	if offset < 0 || offset >= int64(len(b.head)) {
		return nil
	}
	return b.head[offset:]
}

// TailFrom is what of the tail lies at or after an offset, with its first offset; call it when all is written.
func (b *Buffer) TailFrom(offset int64) (int64, []byte) {
	if b.filled == 0 || offset >= b.total {
		return 0, nil
	}
	start := b.total - int64(b.filled)
	tail := make([]byte, 0, b.filled)
	if b.filled == b.tailCap {
		tail = append(append(tail, b.ring[b.next:]...), b.ring[:b.next]...)
	} else {
		tail = append(tail, b.ring[:b.filled]...)
	}
	first := max(start, offset)
	return first, tail[first-start:]
}
