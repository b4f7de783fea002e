package netns

import (
	"net/netip"
	"os"
	"testing"
)

func TestClaimSubnet(t *testing.T) {
	dir := t.TempDir()
	take := func(subnet string) *claim {
		t.Helper()
		c, err := claimSubnet(dir, netip.MustParsePrefix(subnet))
		if err != nil {
			t.Fatalf("claimSubnet(%s): %v", subnet, err)
		}
		return c
	}
	first := take("10.88.0.0/16")
	if first == nil {
		t.Fatal("a free subnet was refused")
	}
	for _, taken := range []string{"10.88.0.0/16", "10.88.128.0/17", "10.0.0.0/8"} {
		if take(taken) != nil {
			t.Errorf("%s was given to two", taken)
		}
	}
	other := take("10.89.0.0/16")
	if other == nil {
		t.Error("the next subnet was refused")
	}
	first.release()
	other.release()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	again := take("10.88.0.0/16")
	if again == nil {
		t.Fatal("a released subnet was refused")
	}
	again.file.Close() // as when its process is killed
	if last := take("10.0.0.0/8"); last == nil {
		t.Error("the subnet of a killed process was refused")
	} else {
		last.release()
	}
}

// TestSubnetsOfTwo starts two before either has a sandbox.
func TestSubnetsOfTwo(t *testing.T) {
	claims := t.TempDir()
	open := func(dir string) *Manager {
		t.Helper()
		m := &Manager{cfg: Config{Dir: dir, Instance: "tstwo", claims: claims}}
		if err := m.takeSubnet(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Release)
		return m
	}
	one, two := t.TempDir()+"/netns", t.TempDir()+"/netns"
	a, b := open(one), open(two)
	if a.Subnet().Overlaps(b.Subnet()) {
		t.Fatalf("both have %s", a.Subnet())
	}
	kept := a.Subnet()
	a.Release()
	if a = open(one); a.Subnet() != kept {
		t.Errorf("the same folder had %s and has %s", kept, a.Subnet())
	}
	// While it was away another took its subnet.
	a.Release()
	if c := open(t.TempDir() + "/netns"); c.Subnet() != kept {
		t.Fatalf("a third has %s", c.Subnet())
	}
	if a = open(one); a.Subnet() == kept || a.Subnet() == b.Subnet() {
		t.Errorf("the subnet %s of another was taken", a.Subnet())
	}
	m := &Manager{cfg: Config{Dir: one, Instance: "tstwo", claims: claims, Subnet: kept}}
	if err := m.takeSubnet(); err == nil {
		t.Error("a named subnet that another has was taken")
	}
}
