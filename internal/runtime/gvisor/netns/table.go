package netns

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

func (m *Manager) table() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: "berth_" + m.cfg.Instance}
}

// installTable writes the whole table in one transaction.
func (m *Manager) installTable() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	t := m.table()
	// Adding first makes the deletion of a table that is not there succeed.
	c.AddTable(t)
	c.DelTable(t)
	c.AddTable(t)
	chain := func(name string, hook *nftables.ChainHook, prio *nftables.ChainPriority, kind nftables.ChainType) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Name: name, Table: t, Hooknum: hook, Priority: prio, Type: kind})
	}
	rule := func(ch *nftables.Chain, parts ...[]expr.Any) {
		var all []expr.Any
		for _, p := range parts {
			all = append(all, p...)
		}
		c.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: all})
	}
	open, closed := openPrefix+m.cfg.Instance+"-", closedPrefix+m.cfg.Instance+"-"
	subnet := m.cfg.Subnet

	// Into the host: answers only.
	input := chain("input", nftables.ChainHookInput, nftables.ChainPriorityFilter, nftables.ChainTypeFilter)
	for _, name := range []string{open, closed} {
		rule(input, in(name), established(), verdict(expr.VerdictAccept))
		rule(input, in(name), verdict(expr.VerdictDrop))
	}

	forward := chain("forward", nftables.ChainHookForward, nftables.ChainPriorityFilter, nftables.ChainTypeFilter)
	rule(forward, out(open), held(), verdict(expr.VerdictDrop))
	rule(forward, in(closed), verdict(expr.VerdictDrop))
	rule(forward, out(closed), verdict(expr.VerdictDrop))
	rule(forward, out(open), in(open), verdict(expr.VerdictDrop))
	rule(forward, out(open), established(), verdict(expr.VerdictAccept))
	rule(forward, out(open), verdict(expr.VerdictDrop))
	rule(forward, in(open), family(unix.NFPROTO_IPV6), verdict(expr.VerdictDrop))
	rule(forward, in(open), family(unix.NFPROTO_IPV4), address(16, []byte{169, 254}), verdict(expr.VerdictDrop))
	rule(forward, in(open), family(unix.NFPROTO_IPV4), address(16, []byte{100, 100, 100, 200}), verdict(expr.VerdictDrop)) // metadata elsewhere
	rule(forward, in(open), family(unix.NFPROTO_IPV4), prefix(16, subnet.Addr().AsSlice(), subnet.Bits()), verdict(expr.VerdictDrop))

	// From the host: root only. Packets without a socket, such as resets, have no owner and pass.
	output := chain("output", nftables.ChainHookOutput, nftables.ChainPriorityFilter, nftables.ChainTypeFilter)
	for _, name := range []string{open, closed} {
		rule(output, out(name), held(), verdict(expr.VerdictDrop))
		rule(output, out(name), notRoot(), verdict(expr.VerdictDrop))
	}

	nat := chain("postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, nftables.ChainTypeNAT)
	rule(nat, out(open), verdict(expr.VerdictAccept))
	rule(nat, family(unix.NFPROTO_IPV4), prefix(12, subnet.Addr().AsSlice(), subnet.Bits()), []expr.Any{&expr.Masq{}})
	return c.Flush()
}

func (m *Manager) removeTable() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.AddTable(m.table())
	c.DelTable(m.table())
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove nftables table: %w", err)
	}
	return nil
}

// in and out match the beginning of the name of the interface that a packet comes from or goes to.
func in(name string) []expr.Any  { return iface(expr.MetaKeyIIFNAME, name) }
func out(name string) []expr.Any { return iface(expr.MetaKeyOIFNAME, name) }

func iface(key expr.MetaKey, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(name)}}
}

// held matches packets to an interface that Hold was called of.
func held() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFGROUP, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(heldGroup)},
	}
}

func family(f byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f}}}
}

// address matches the first bytes of an IPv4 address at an offset of the header: 12 is the source, 16 the destination.
func address(offset uint32, first []byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(first))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: first},
	}
}

// prefix matches an IPv4 address by a number of bits.
func prefix(offset uint32, network []byte, bits int) []expr.Any {
	mask := binaryutil.BigEndian.PutUint32(^uint32(0) << (32 - bits))
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: []byte{0, 0, 0, 0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: network},
	}
}

func established() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED), Xor: []byte{0, 0, 0, 0},
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{0, 0, 0, 0}},
	}
}

func notRoot() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeySKUID, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{0, 0, 0, 0}}}
}

func verdict(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }
