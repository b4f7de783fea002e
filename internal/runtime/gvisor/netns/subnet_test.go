package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// apart runs a test on a thread in a network namespace of its own, which ends with it.
func apart(t *testing.T, do func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never given back
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		do(t)
	}()
	<-done
}

// cable makes an interface that looks like a sandbox's, with a network.
func cable(t *testing.T, name, network string) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "p" + name[2:]}
	err := netlink.LinkAdd(veth)
	if err == nil {
		var a *netlink.Addr
		if a, err = netlink.ParseAddr(network); err == nil {
			err = errors.Join(netlink.AddrAdd(veth, a), netlink.LinkSetUp(veth))
		}
	}
	if err != nil {
		t.Errorf("make %s: %v", name, err)
	}
	return veth
}

// A runtime that was killed has no claim until it is back, but its sandboxes have their addresses: nobody else may take its subnet meanwhile, not even who
// had it before.
func TestSubnetWithSandboxesOfAnother(t *testing.T) {
	apart(t, func(t *testing.T) {
		link := cable(t, "boaaaaa-0", "10.88.0.1/30")
		claims := t.TempDir()
		subnetOf := func(instance, saved, named string) (string, error) {
			dir := t.TempDir()
			if err := os.WriteFile(dir+"/subnet", []byte(saved), 0o600); err != nil {
				t.Error(err)
			}
			m := &Manager{cfg: Config{Dir: dir + "/netns", Instance: instance, claims: claims}}
			if named != "" {
				m.cfg.Subnet = netip.MustParsePrefix(named)
			}
			err := m.takeSubnet()
			defer m.Release()
			return m.Subnet().String(), err
		}
		for name, tt := range map[string]struct{ instance, saved, named, want string }{
			"a new one":              {"bbbbb", "", "", "10.89.0.0/16"},
			"one that had it before": {"bbbbb", "10.88.0.0/16", "", "10.89.0.0/16"},
			"one that is told to":    {"bbbbb", "", "10.88.0.0/16", ""},
			"told a part of it":      {"bbbbb", "", "10.88.0.0/24", ""},
			"told another":           {"bbbbb", "", "10.77.0.0/16", "10.77.0.0/16"},
			"whose it is":            {"aaaaa", "10.88.0.0/16", "", "10.88.0.0/16"},
			"whose it is, told to":   {"aaaaa", "", "10.88.0.0/16", "10.88.0.0/16"},
		} {
			got, err := subnetOf(tt.instance, tt.saved, tt.named)
			if tt.want == "" {
				if err == nil || !strings.Contains(err.Error(), "another berth-runtime") {
					t.Errorf("%s: got %s, %v; want an error", name, got, err)
				}
			} else if err != nil || got != tt.want {
				t.Errorf("%s: got %s, %v; want %s", name, got, err, tt.want)
			}
		}
		if err := netlink.LinkDel(link); err != nil {
			t.Error(err)
		}
		if got, err := subnetOf("bbbbb", "10.88.0.0/16", ""); err != nil || got != "10.88.0.0/16" {
			t.Errorf("once it is free: %s, %v", got, err)
		}
	})
}

// Where others set up and remove networks at that moment, the kernel's lists come in pieces of different moments. A runtime once did not come back for that.
func TestListsThatChange(t *testing.T) {
	apart(t, func(t *testing.T) {
		for i := range 40 {
			cable(t, fmt.Sprintf("bobbbbb-%d", i), fmt.Sprintf("10.90.%d.1/30", i))
		}
		here, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			t.Error(err)
			return
		}
		defer here.Close()
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			runtime.LockOSThread()
			if err := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); err != nil {
				t.Errorf("setns: %v", err)
				return
			}
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := netlink.LinkDel(cable(t, "boccccc-0", "10.91.0.1/30")); err != nil {
					t.Error(err)
				}
			}
		}()
		m := &Manager{cfg: Config{Dir: t.TempDir(), Instance: "aaaaa", claims: t.TempDir()}}
		broken := 0
		for end := time.Now().Add(time.Minute); broken < 5 && time.Now().Before(end) && !t.Failed(); {
			if _, err := netlink.LinkList(); errors.Is(err, netlink.ErrDumpInterrupted) {
				broken++
			}
			if _, err := m.othersIn(netip.MustParsePrefix("10.88.0.0/16")); err != nil {
				t.Errorf("after %d broken lists: %v", broken, err)
			}
			if err := m.Reclaim(nil); err != nil {
				t.Errorf("after %d broken lists: %v", broken, err)
			}
		}
		close(stop)
		<-stopped
		if broken == 0 && !t.Failed() {
			t.Error("no list was broken: this test proves nothing")
		}
	})
}
