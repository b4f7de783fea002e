package gvisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/guest"
)

// double is somebody else on this machine who has the address of a sandbox, and listens there as its guest does: another server with the same subnet.
type double struct {
	came atomic.Int64 // connections
	link netlink.Link // the host's end
}

// newDouble puts it behind a cable of its own. The host reaches it by a route to the /30 of the address, or to the address alone.
func newDouble(t *testing.T, address string, alone bool) *double {
	t.Helper()
	a := netip.MustParseAddr(address)
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	d, name := &double{}, fmt.Sprintf("dbl%d", os.Getpid())
	listening := make(chan error, 1)
	stop := make(chan struct{})
	go func() { // its thread, and so its namespace, ends with it
		goruntime.LockOSThread()
		l, err := d.inside(a, name, int(host.Fd()))
		listening <- err
		if err != nil {
			return
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				d.came.Add(1)
				c.Close()
			}
		}()
		<-stop
		l.Close()
	}()
	if err := <-listening; err != nil {
		t.Fatalf("make a double: %v", err)
	}
	t.Cleanup(func() { d.remove(t); close(stop) })
	bits, own := 30, a.Prev()
	if alone {
		bits = 32
	}
	if d.link, err = netlink.LinkByName(name); err != nil {
		t.Fatal(err)
	}
	ip := &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(bits, 32)}}
	if err := errors.Join(netlink.AddrAdd(d.link, ip), netlink.LinkSetUp(d.link)); err != nil {
		t.Fatal(err)
	}
	if alone {
		only := &netlink.Route{LinkIndex: d.link.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)}}
		if err := netlink.RouteAdd(only); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func (d *double) inside(a netip.Addr, name string, host int) (net.Listener, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(host)}); err != nil {
		return nil, err
	}
	eth, err := netlink.LinkByName("eth0")
	if err != nil {
		return nil, err
	}
	ip := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(30, 32)}}
	if err := errors.Join(netlink.AddrAdd(eth, ip), netlink.LinkSetUp(eth)); err != nil {
		return nil, err
	}
	return net.Listen("tcp4", fmt.Sprint(":", guest.Port))
}

func (d *double) remove(t *testing.T) {
	t.Helper()
	if d.link == nil {
		return
	}
	if err := netlink.LinkDel(d.link); err != nil {
		t.Error(err)
	}
	d.link = nil
}

// A dial reaches the sandbox that it is for or nobody, whatever the host's routes say of its address: the guest's token goes with the first call.
func TestDialReachesItsOwnSandbox(t *testing.T) {
	r := newRig(t)
	spec := r.create()
	st, err := r.Get(r.ctx(), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	d := newDouble(t, st.Address, true)
	// It is where the host's routes lead.
	if c, err := net.DialTimeout("tcp4", net.JoinHostPort(st.Address, fmt.Sprint(guest.Port)), patience); err != nil {
		t.Fatalf("the double does not answer: %v", err)
	} else {
		c.Close()
	}
	for d.came.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	before := d.came.Load()
	ctx, cancel := context.WithTimeout(r.ctx(), 2*time.Second)
	defer cancel()
	if c, err := r.Dial(ctx, spec.ID, guest.Port); err == nil {
		// Without strict reverse paths it may get through.
		c.Close()
		if _, err := r.ask(spec.ID, "GET", "/hello", nil, nil); err != nil {
			t.Errorf("somebody answers who is not the guest: %v", err)
		}
	}
	d.remove(t)
	r.awaitGuest(spec.ID)
	if n := d.came.Load() - before; n > 0 {
		t.Errorf("the double was reached %d times", n)
	}
}

// Where somebody else has a sandbox's address already, the boot fails and says who.
func TestAddressInUse(t *testing.T) {
	r := newRig(t)
	hello, err := r.Hello(r.ctx())
	if err != nil {
		t.Fatal(err)
	}
	first := netip.MustParsePrefix(hello.Subnet).Addr().Next().Next()
	d := newDouble(t, first.String(), false)
	name := d.link.Attrs().Name
	spec := r.spec()
	if _, err := r.Create(r.ctx(), spec); err == nil || !strings.Contains(err.Error(), "on "+name+": the sandboxes' subnet") {
		t.Errorf("create: %v; want that %s has the address", err, name)
	}
	if left := r.leftovers(); len(left) > 0 {
		t.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
	d.remove(t)
	if _, err := r.Create(r.ctx(), spec); err != nil {
		t.Fatal(err)
	}
	r.awaitGuest(spec.ID)
	if n := d.came.Load(); n > 0 {
		t.Errorf("the other was reached %d times", n)
	}
}
