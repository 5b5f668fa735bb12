package main

import (
	"net/netip"
	"testing"
)

func hosts(t *testing.T, names ...string) hostRules {
	t.Helper()
	var rules hostRules
	for _, name := range names {
		if err := rules.Set(name); err != nil {
			t.Fatal(err)
		}
	}
	return rules
}

func addresses(t *testing.T, text string) addressRules {
	t.Helper()
	var rules addressRules
	if err := rules.Set(text); err != nil {
		t.Fatal(err)
	}
	return rules
}

func TestHostRules(t *testing.T) {
	rules := hosts(t, "PyPI.org.", "*.pythonhosted.org")
	for name, want := range map[string]bool{
		"pypi.org":                    true,
		"www.pypi.org":                false,
		"files.pythonhosted.org":      true,
		"a.b.pythonhosted.org":        true,
		"pythonhosted.org":            false,
		"evilpythonhosted.org":        false,
		"files.pythonhosted.org.evil": false,
		"evil/.pythonhosted.org":      false,
		"evil.example\x00.pypi.org":   false,
		"..pythonhosted.org":          false,
		".pythonhosted.org":           false,
		"10.0.0.1":                    false,
		"":                            false,
	} {
		if got := rules.allows(name); got != want {
			t.Errorf("allows(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestHostRulesRefuse(t *testing.T) {
	for _, text := range []string{"", "*", "*.", "10.0.0.1", "*.*.example", "a b", "https://a.example", "-a.example", "a..example"} {
		var rules hostRules
		if err := rules.Set(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestAddressRulesLongestPrefixDecides(t *testing.T) {
	rules := addresses(t, "allow:0.0.0.0/0,deny:10.0.0.0/8,allow:10.1.0.0/16,deny:10.1.2.0/24,deny:169.254.0.0/16,deny:10.9.0.0/16,allow:10.9.0.0/16,deny:::/0,allow:2000::/3")
	for text, want := range map[string]bool{
		"8.8.8.8":                true,
		"10.0.0.1":               false,
		"10.1.0.1":               true,
		"10.1.2.1":               false,
		"10.9.0.1":               true,
		"169.254.169.254":        false,
		"::ffff:169.254.169.254": false,
		"::ffff:8.8.8.8":         true,
		"2600::1":                true,
		"fd00::1":                false,
		"fe80::1%eth0":           false,
		"64:ff9b::a9fe:a9fe":     false,
	} {
		if got := rules.permits(netip.MustParseAddr(text)); got != want {
			t.Errorf("permits(%s) = %v, want %v", text, got, want)
		}
	}
	if addresses(t, "allow:8.8.8.0/24").permits(netip.MustParseAddr("9.9.9.9")) {
		t.Error("an address in no rule must be refused")
	}
}

func TestParseRefusesWhatAllowsNothing(t *testing.T) {
	good := []string{"-allow-host", "a.example", "-addresses", "allow:0.0.0.0/0", "-tls-ports", "443"}
	if _, err := parse("p", good); err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]string{good[2:], {"-allow-host", "a.example", "-tls-ports", "443"}, good[:4], append(good, "extra"), append(good, "-tls-ports", "0"), append(good, "-idle-timeout", "-1s"), append(good, "-max-connections", "0")} {
		if _, err := parse("p", bad); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}
