package main

import (
	"fmt"
	"net/netip"
	"sort"
	"strings"
)

// hostRules holds the host names that may be reached, in lower case and without a trailing dot.
type hostRules struct {
	exact    map[string]bool
	suffixes []string // each with its leading dot
}

func (h *hostRules) String() string {
	if h == nil {
		return ""
	}
	names := make([]string, 0, len(h.exact)+len(h.suffixes))
	for name := range h.exact {
		names = append(names, name)
	}
	for _, suffix := range h.suffixes {
		names = append(names, "*"+suffix)
	}
	sort.Strings(names)
	return strings.Join(names, ",")
}

func (h *hostRules) Set(text string) error {
	name := normalHost(text)
	rest, wildcard := strings.CutPrefix(name, "*.")
	if _, err := netip.ParseAddr(rest); err == nil || !isHostName(rest) {
		return fmt.Errorf("%q is no host name (a.example or *.example)", text)
	}
	if wildcard {
		h.suffixes = append(h.suffixes, "."+rest)
		return nil
	}
	if h.exact == nil {
		h.exact = map[string]bool{}
	}
	h.exact[name] = true
	return nil
}

// allows tells whether a normal host name is listed; *.example covers a.example and b.a.example, not example.
func (h *hostRules) allows(name string) bool {
	if h.exact[name] {
		return true
	}
	if !isHostName(name) {
		return false
	}
	for _, suffix := range h.suffixes {
		if strings.HasSuffix(name, suffix) && len(name) > len(suffix) {
			return true
		}
	}
	return false
}

func normalHost(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

func isHostName(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	for _, label := range strings.Split(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range label {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	return true
}

// addressRules decide by the longest prefix that holds an address; an address in none is refused.
type addressRules map[netip.Prefix]bool

func (a *addressRules) String() string {
	if a == nil {
		return ""
	}
	return fmt.Sprint(map[netip.Prefix]bool(*a))
}

func (a *addressRules) Set(text string) error {
	if *a == nil {
		*a = addressRules{}
	}
	for _, part := range strings.Split(text, ",") {
		verb, cidr, _ := strings.Cut(part, ":")
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil || (verb != "allow" && verb != "deny") {
			return fmt.Errorf("%q is neither allow:CIDR nor deny:CIDR", part)
		}
		// Of two rules for one prefix an operator's allow wins, as in the scheduler's policies.
		(*a)[prefix.Masked()] = (*a)[prefix.Masked()] || verb == "allow"
	}
	return nil
}

func (a addressRules) permits(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	for bits := address.BitLen(); bits >= 0; bits-- {
		prefix, err := address.Prefix(bits)
		if err != nil {
			return false
		}
		if allowed, found := a[prefix]; found {
			return allowed
		}
	}
	return false
}
