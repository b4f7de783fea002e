package recipe

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"slices"
	"strconv"
)

// BaseKey is the key of the layer that a stage begins with: an image by the digest of its manifest, a template by the key of its last layer. Nothing at all
// has a key too.
func BaseKey(kind SourceKind, identity string) string {
	k := newKey("base")
	k.field(string(kind))
	k.field(identity)
	return k.sum()
}

// Key is the key of the layer that an action leaves on top of the layer that parent is the key of: 64 hexadecimal digits. content stands for the files
// that a Put takes, such as inputs.Selection.Digest, and is empty for others. The key depends on what the action can see and on nothing else: not on how
// the step was written, on labels, ports, CMD or ENTRYPOINT, nor on any time. An action without a layer has its parent's key.
func (a Action) Key(parent, content string) string {
	switch {
	case a.Exec != nil:
		k := newKey("exec")
		k.field(parent)
		k.list(a.Exec.Argv)
		env := slices.DeleteFunc(slices.Clone(a.Exec.Env), a.unseen)
		slices.Sort(env)
		k.list(env)
		k.field(a.Exec.Dir)
		k.field(a.Exec.User)
		k.field(a.Exec.Stdin)
		return k.sum()
	case a.Put != nil:
		k := newKey("put")
		k.field(parent)
		a.Put.hash(k)
		k.field(content)
		return k.sum()
	case a.MakeDir != "":
		k := newKey("dir")
		k.field(parent)
		k.field(a.MakeDir)
		k.field(a.As)
		return k.sum()
	}
	return parent
}

func (p *Put) hash(k key) {
	from := Source{}
	if p.From != nil {
		from = *p.From
	}
	k.field(string(from.Kind)) // which stage or image it is, content says
	k.list(p.Sources)
	k.count(len(p.Inline))
	for _, f := range p.Inline {
		k.field(f.Name)
		k.field(f.Data)
	}
	k.field(p.Dest)
	k.flag(p.DestDir)
	k.list(p.Exclude)
	k.field(p.Owner)
	k.flag(p.Mode != nil)
	if p.Mode != nil {
		k.field(strconv.FormatInt(*p.Mode, 8))
	}
	k.flag(p.Parents)
	k.flag(p.Unpack)
}

// key hashes fields that each have their length in front, so that no two lists of fields are the same bytes.
type key struct{ h hash.Hash }

func newKey(kind string) key {
	k := key{sha256.New()}
	k.field("berth layer 1")
	k.field(kind)
	return k
}

func (k key) count(n int) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	k.h.Write(b[:])
}

func (k key) field(s string) {
	k.count(len(s))
	k.h.Write([]byte(s))
}

func (k key) list(fields []string) {
	k.count(len(fields))
	for _, f := range fields {
		k.field(f)
	}
}

func (k key) flag(b bool) { k.field(strconv.FormatBool(b)) }

func (k key) sum() string { return hex.EncodeToString(k.h.Sum(nil)) }
