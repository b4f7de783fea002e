// Package netns owns the networks of sandboxes: for each a namespace, a pair of virtual cables and a /30 out of one subnet, and for all of
// them together one nftables table that says what may pass.
//
// A sandbox of the internet kind reaches what its host routes to, but not the host itself, link-local addresses (where clouds keep their
// metadata) or any other sandbox; one without a network reaches nothing. Only root on the host can open connections to a sandbox.
// Everything here is IPv4: IPv6 is off on the cables. No external program is used.
package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Config of a Manager.
type Config struct {
	Dir      string       // where namespaces are pinned
	Instance string       // five characters of [a-z0-9] that tell our interfaces from those of another process on this machine
	Subnet   netip.Prefix // the invalid prefix takes the first of Candidates that the machine does not use

	claims string // where subnets are claimed; claimDir where empty
}

// Manager makes and removes networks.
type Manager struct {
	cfg   Config
	claim *claim
}

// Open chooses the subnet, turns forwarding on and installs the table, replacing one that an earlier process of this instance left.
func Open(cfg Config) (*Manager, error) {
	m := &Manager{cfg: cfg}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make namespace folder: %w", err)
	}
	if err := m.takeSubnet(); err != nil {
		return nil, err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		m.Release()
		return nil, fmt.Errorf("turn forwarding on: %w", err)
	}
	if err := m.installTable(); err != nil {
		m.Release()
		return nil, fmt.Errorf("install nftables table: %w", err)
	}
	return m, nil
}

// Subnet is the one in use.
func (m *Manager) Subnet() netip.Prefix { return m.cfg.Subnet }

// Slots is how many sandboxes can have a network at once.
func (m *Manager) Slots() int { return 1 << (32 - m.cfg.Subnet.Bits() - 2) }

// Address is the sandbox's own in a slot.
func (m *Manager) Address(slot int) netip.Addr { return m.nth(slot, 2) }

// Path is the namespace of a sandbox.
func (m *Manager) Path(id string) string { return filepath.Join(m.cfg.Dir, id) }

func (m *Manager) nth(slot, n int) netip.Addr {
	b := m.cfg.Subnet.Addr().As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(slot)*4 + uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// The first two letters of an interface's name say what the table lets through: the table is written once and never touched again.
const (
	openPrefix   = "bo"
	closedPrefix = "bc"
)

// Link is the name of the host's end of the cable in a slot.
func (m *Manager) Link(slot int, internet bool) string {
	prefix := closedPrefix
	if internet {
		prefix = openPrefix
	}
	return fmt.Sprintf("%s%s-%d", prefix, m.cfg.Instance, slot)
}

// Setup makes the network of a sandbox, with nothing on its other end until Connect. What an earlier one in the slot or of this id left is removed first.
func (m *Manager) Setup(id string, slot int, internet bool) error {
	if err := m.Teardown(id, slot); err != nil {
		return err
	}
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("open host namespace: %w", err)
	}
	defer host.Close()
	name := m.Link(slot, internet)
	done := make(chan error, 1)
	go func() {
		// The thread ends with this goroutine: it is never given back, as it stays in the sandbox's namespace.
		runtime.LockOSThread()
		done <- m.setupInside(id, slot, name, int(host.Fd()))
	}()
	if err := <-done; err != nil {
		return errors.Join(err, m.Teardown(id, slot))
	}
	if err := m.setupOutside(slot, name, id); err != nil {
		return errors.Join(err, m.Teardown(id, slot))
	}
	return nil
}

func (m *Manager) setupInside(id string, slot int, name string, host int) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	f, err := os.OpenFile(m.Path(id), os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o400)
	if err != nil {
		return fmt.Errorf("make namespace file: %w", err)
	}
	f.Close()
	if err := unix.Mount("/proc/thread-self/ns/net", m.Path(id), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin network namespace: %w", err)
	}
	for _, scope := range []string{"all", "default"} {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+scope+"/disable_ipv6", []byte("1"), 0) // absent where the kernel has none
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(host)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make cable %s: %w", name, err)
	}
	eth, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find cable: %w", err)
	}
	if err := netlink.AddrAdd(eth, addr(m.Address(slot))); err != nil {
		return fmt.Errorf("set address: %w", err)
	}
	if err := netlink.LinkSetUp(eth); err != nil {
		return fmt.Errorf("set cable up: %w", err)
	}
	route := &netlink.Route{LinkIndex: eth.Attrs().Index, Gw: m.nth(slot, 1).AsSlice()}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("set default route: %w", err)
	}
	return nil
}

func (m *Manager) setupOutside(slot int, name, id string) error {
	l, err := findCable(name)
	if err != nil {
		return err
	}
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0) // absent where the kernel has none
	// Strict reverse paths: a sandbox cannot send under another's address.
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/rp_filter", []byte("1"), 0); err != nil {
		return fmt.Errorf("set reverse path filter: %w", err)
	}
	if err := netlink.LinkSetAlias(l, "berth "+id); err != nil {
		return fmt.Errorf("name cable: %w", err)
	}
	if err := netlink.AddrAdd(l, addr(m.nth(slot, 1))); err != nil {
		return fmt.Errorf("set host address: %w", err)
	}
	return nil
}

// Connect sets the host's end of the cable up, and lets through what Hold held.
func (m *Manager) Connect(slot int, internet bool) error {
	l, err := m.group(slot, internet, 0)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("set host cable up: %w", err)
	}
	return m.checkRoute(slot, l.Attrs().Index)
}

// Hold lets nothing through to a sandbox until Connect. TCP sends again what it loses by that. Setting the cable down instead would have the kernel forget
// every connection over it: what the sandbox sends next would be taken for the beginning of a new one, and be dropped.
func (m *Manager) Hold(slot int, internet bool) error {
	_, err := m.group(slot, internet, heldGroup)
	return err
}

// heldGroup is the group of the interfaces to which the table lets nothing through.
const heldGroup = 0x62657274

func (m *Manager) group(slot int, internet bool, group int) (netlink.Link, error) {
	l, err := findCable(m.Link(slot, internet))
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkSetGroup(l, group); err != nil {
		return nil, fmt.Errorf("set group of host cable: %w", err)
	}
	return l, nil
}

func findCable(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find cable %s: %w", name, err)
	}
	return l, nil
}

// checkRoute fails where the host would send to another interface what is for a sandbox: with strict reverse paths nothing of it would come back.
func (m *Manager) checkRoute(slot, link int) error {
	routes, err := netlink.RouteGet(m.Address(slot).AsSlice())
	if err != nil {
		return nil // nobody else has it either
	}
	for _, r := range routes {
		if r.LinkIndex == link {
			continue
		}
		name := "another interface"
		if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			name = l.Attrs().Name
		}
		return fmt.Errorf("the host has %s on %s: the sandboxes' subnet %s is in use by something else", m.Address(slot), name, m.cfg.Subnet)
	}
	return nil
}

func addr(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(30, 32)}}
}

// Teardown removes a sandbox's network; what is gone is fine.
func (m *Manager) Teardown(id string, slot int) error {
	var failed error
	for _, internet := range []bool{true, false} {
		failed = errors.Join(failed, removeLink(m.Link(slot, internet)))
	}
	return errors.Join(failed, m.unpin(id))
}

func removeLink(name string) error {
	l, err := netlink.LinkByName(name)
	if _, gone := errors.AsType[netlink.LinkNotFoundError](err); gone {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(l)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove cable %s: %w", name, err)
	}
	return nil
}

func (m *Manager) unpin(id string) error {
	path := m.Path(id)
	for {
		// Until it is no mount any more: an interrupted setup may have left more than one on top of each other.
		err := unix.Unmount(path, unix.MNT_DETACH)
		if err == nil {
			continue
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		return fmt.Errorf("unpin namespace: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove namespace file: %w", err)
	}
	return nil
}

// Reclaim removes the networks of this instance that are not in keep, which maps ids to slots.
func (m *Manager) Reclaim(keep map[string]int) error {
	wanted := map[string]bool{}
	for _, slot := range keep {
		wanted[m.Link(slot, true)], wanted[m.Link(slot, false)] = true, true
	}
	links, err := whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var failed error
	for _, l := range links {
		name := l.Attrs().Name
		ours := strings.HasPrefix(name, openPrefix+m.cfg.Instance+"-") || strings.HasPrefix(name, closedPrefix+m.cfg.Instance+"-")
		if ours && !wanted[name] {
			failed = errors.Join(failed, removeLink(name))
		}
	}
	entries, err := os.ReadDir(m.cfg.Dir)
	if err != nil {
		return errors.Join(failed, fmt.Errorf("list namespaces: %w", err))
	}
	for _, e := range entries {
		if _, ok := keep[e.Name()]; !ok {
			failed = errors.Join(failed, m.unpin(e.Name()))
		}
	}
	return failed
}

// Clear removes the networks and the table of an instance of which no process is left. Of the configuration it needs Dir, which may be gone, and Instance.
func Clear(cfg Config) error {
	m := &Manager{cfg: cfg}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	return errors.Join(m.Reclaim(nil), m.removeTable())
}

// Close removes the table. It is for when no sandbox is left.
func (m *Manager) Close() error { return m.removeTable() }
