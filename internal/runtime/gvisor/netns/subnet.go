package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// Candidates are the subnets that are tried.
func Candidates() []netip.Prefix {
	var out []netip.Prefix
	for i := byte(88); i < 104; i++ {
		out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, i, 0, 0}), 16))
	}
	return out
}

// takeSubnet takes the subnet that was named, or chooses one.
func (m *Manager) takeSubnet() error {
	if !m.cfg.Subnet.IsValid() {
		return m.chooseSubnet()
	}
	if !m.cfg.Subnet.Addr().Is4() || m.cfg.Subnet.Bits() > 28 {
		return fmt.Errorf("subnet %s is not an IPv4 network of at least 16 addresses", m.cfg.Subnet)
	}
	ok, err := m.take(m.cfg.Subnet)
	if err == nil && !ok {
		err = fmt.Errorf("another berth-runtime on this machine has the subnet %s or a part of it", m.cfg.Subnet)
	}
	return err
}

// take claims a subnet and tells whether it could be had.
func (m *Manager) take(subnet netip.Prefix) (bool, error) {
	dir := m.cfg.claims
	if dir == "" {
		dir = claimDir
	}
	c, err := claimSubnet(dir, subnet.Masked())
	if err != nil {
		return false, fmt.Errorf("claim subnet %s: %w", subnet, err)
	}
	if c == nil {
		return false, nil
	}
	// Looked at with the claim in hand: whoever has the subnet's cables but not its claim was killed a moment ago, and comes back to them.
	others, err := m.othersIn(subnet)
	if err != nil || others {
		c.release()
		return false, err
	}
	m.cfg.Subnet, m.claim = subnet.Masked(), c
	return true, nil
}

// othersIn tells whether sandboxes of another instance, and none of ours, have cables in a subnet.
func (m *Manager) othersIn(subnet netip.Prefix) (bool, error) {
	links, err := whole(netlink.LinkList)
	if err != nil {
		return false, fmt.Errorf("list interfaces: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	routes, err := allRoutes()
	if err != nil {
		return false, err
	}
	others := false
	for _, r := range routes {
		p, ok := destination(&r)
		if !ok || !p.Overlaps(subnet) {
			continue
		}
		switch instance, ok := instanceOf(names[r.LinkIndex]); {
		case ok && instance == m.cfg.Instance:
			return false, nil
		case ok:
			others = true
		}
	}
	return others, nil
}

// instanceOf gives whose cable an interface is, by its name.
func instanceOf(name string) (string, bool) {
	rest, open := strings.CutPrefix(name, openPrefix)
	if !open {
		var closed bool
		if rest, closed = strings.CutPrefix(name, closedPrefix); !closed {
			return "", false
		}
	}
	instance, slot, ok := strings.Cut(rest, "-")
	_, err := strconv.ParseUint(slot, 10, 32)
	return instance, ok && err == nil && len(instance) == 5
}

// destination is where a route leads to; false for the default route.
func destination(r *netlink.Route) (netip.Prefix, bool) {
	if r.Dst == nil {
		return netip.Prefix{}, false
	}
	ones, _ := r.Dst.Mask.Size()
	a, ok := netip.AddrFromSlice(r.Dst.IP.To4())
	return netip.PrefixFrom(a, ones), ok && ones > 0
}

// Release lets others have the subnet.
func (m *Manager) Release() {
	m.claim.release()
	m.claim = nil
}

// chooseSubnet keeps what an earlier process of this root chose, as sandboxes that still run have addresses in it. Another process can only have
// taken that while none ran: their cables would have shown.
func (m *Manager) chooseSubnet() error {
	file := filepath.Join(m.cfg.Dir, "..", "subnet")
	if b, err := os.ReadFile(file); err == nil {
		if p, err := netip.ParsePrefix(strings.TrimSpace(string(b))); err == nil && p.Addr().Is4() && p.Bits() <= 28 {
			if ok, err := m.take(p); ok || err != nil {
				return err
			}
		}
	}
	routes, err := allRoutes()
	if err != nil {
		return err
	}
	var used []netip.Prefix
	for _, r := range routes {
		if p, ok := destination(&r); ok {
			used = append(used, p)
		}
	}
	if ns := hostNameservers(); len(ns) > 0 {
		for _, a := range ns {
			used = append(used, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, c := range Candidates() {
		free := true
		for _, u := range used {
			free = free && !c.Overlaps(u)
		}
		if !free {
			continue
		}
		ok, err := m.take(c)
		if err != nil {
			return err
		}
		if ok {
			return os.WriteFile(file, []byte(c.String()+"\n"), 0o600)
		}
	}
	return errors.New("every candidate subnet is in use on this machine: name one")
}

func allRoutes() ([]netlink.Route, error) {
	routes, err := whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return routes, nil
}

// listTries is how often a list is asked for until it is whole.
const listTries = 100

// whole asks for a list again where it changed while the kernel gave it, which it does where others set up their own networks at that moment.
func whole[T any](list func() (T, error)) (T, error) {
	for n := 1; ; n++ {
		out, err := list()
		if n == listTries || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
}
