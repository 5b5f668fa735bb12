package process

// guests are processes that entered from outside, as `pods/exec` starts them: their parent is in no namespace of ours.
// The bridge that carries our own callers is one of them. A task cannot make any: its orphans get the init as parent.
func guests() map[int]bool {
	found := map[int]bool{}
	for _, entry := range Table() {
		if entry.Parent == 0 && entry.Pid != 1 {
			found[entry.Pid] = true
		}
	}
	return found
}

// killAllBut kills every process but the init and those to be spared; false when they fork too fast.
func killAllBut(spared map[int]bool) bool {
	roots := map[int]bool{1: true}
	for pid := range spared {
		roots[pid] = true
	}
	return KillTree(func() []int {
		pids := []int{}
		for _, pid := range Descendants(Table(), roots, nil) {
			if !spared[pid] {
				pids = append(pids, pid)
			}
		}
		return pids
	})
}
