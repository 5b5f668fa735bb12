package process

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// Where a container sees its own memory cgroup: version 2 first, then version 1.
var oomFiles = []struct{ path, key string }{
	{"/sys/fs/cgroup/memory.events", "oom_kill"},
	{"/sys/fs/cgroup/memory/memory.oom_control", "oom_kill"},
}

// OOMKills counts what the kernel killed in this container for memory; 0 where it can't be seen.
func OOMKills() int64 {
	for _, file := range oomFiles {
		if count, ok := counterIn(file.path, file.key); ok {
			return count
		}
	}
	return 0
}

func counterIn(path, key string) (int64, bool) {
	file, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		name, value, _ := strings.Cut(scanner.Text(), " ")
		if name == key {
			count, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return count, err == nil
		}
	}
	return 0, false
}
