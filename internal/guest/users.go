//go:build linux

package guest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// user is one account inside the sandbox, with all that a process or a file call of it needs.
type user struct {
	name   string
	uid    uint32
	gid    uint32
	groups []uint32 // supplementary ones
	home   string
	shell  string
}

// maxAccountFile bounds what is read of /etc/passwd and /etc/group: the tenant writes them.
const maxAccountFile = 4 << 20

// users resolves names. It keeps what it parsed until one of the two files changes.
type users struct {
	root string // what /etc is below
	had  bool   // there was a DefaultUser at the beginning

	mu        sync.Mutex
	stamp     [2]fileStamp
	byName    map[string]*user
	byUID     map[uint32]*user
	preset    string // the default that an image names
	hadPreset bool   // there was such an account
	groups    map[uint32]string
	gids      map[string]uint32
}

// fileStamp tells whether a file is still the one that was read.
type fileStamp struct {
	ino, size, mtime int64
}

func newUsers(root string) *users {
	u := &users{root: root}
	u.refresh()
	u.had = u.byName[DefaultUser] != nil
	return u
}

// setDefault names whom an empty name means.
func (u *users) setDefault(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refresh()
	_, err := u.find(name)
	u.preset, u.hadPreset = name, err == nil
}

// lookup gives the account of a name or number, which may have a group's behind a colon. An empty name is the one that the image names, else DefaultUser;
// or root where there was none such when the guest began: an image may be without. One that went missing later is an error, so that nothing runs with more
// rights than it was thought to.
func (u *users) lookup(name string) (*user, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refresh()
	if name == "" && u.preset != "" {
		if a, err := u.find(u.preset); err == nil || u.hadPreset {
			return a, err
		}
		name = "root"
	}
	if name == "" {
		if a := u.byName[DefaultUser]; a != nil {
			return a, nil
		}
		if u.had {
			return nil, fail(CodeCannotRun, "the account %s is no longer in the sandbox's /etc/passwd", DefaultUser)
		}
		name = "root"
	}
	return u.find(name)
}

func (u *users) find(name string) (*user, error) {
	if a := u.byName[name]; a != nil {
		return a, nil
	}
	if name == "root" {
		return &user{name: "root", home: "/root", shell: "/bin/sh"}, nil
	}
	id, group, both := strings.Cut(name, ":")
	uid, err := strconv.ParseUint(id, 10, 31)
	known := u.byName[id]
	if err == nil {
		known = u.byUID[uint32(uid)]
	}
	if err != nil && known == nil {
		return nil, fail(CodeCannotRun, "there is no user %q in the sandbox", clip(name, 64))
	}
	a := user{name: id, uid: uint32(uid), gid: uint32(uid), home: "/", shell: "/bin/sh"}
	if known != nil {
		a = *known
	}
	if both {
		gid, ok := u.gids[group]
		if n, err := strconv.ParseUint(group, 10, 31); err == nil {
			gid, ok = uint32(n), true
		}
		if !ok {
			return nil, fail(CodeCannotRun, "there is no group %q in the sandbox", clip(group, 64))
		}
		a.gid, a.groups = gid, nil
	}
	return &a, nil
}

// names gives what to call an owner: the account's and the group's name, or their numbers.
func (u *users) names(uid, gid uint32) (string, string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	owner, group := strconv.FormatUint(uint64(uid), 10), strconv.FormatUint(uint64(gid), 10)
	if a := u.byUID[uid]; a != nil {
		owner = a.name
	}
	if name, ok := u.groups[gid]; ok {
		group = name
	}
	return owner, group
}

// refresh parses the account files again where they changed. A missing or broken file leaves no accounts from it.
func (u *users) refresh() {
	passwd, group := filepath.Join(u.root, "/etc/passwd"), filepath.Join(u.root, "/etc/group")
	stamp := [2]fileStamp{stampOf(passwd), stampOf(group)}
	if u.byName != nil && stamp == u.stamp {
		return
	}
	u.stamp = stamp
	u.byName, u.byUID = map[string]*user{}, map[uint32]*user{}
	u.groups, u.gids = map[uint32]string{}, map[string]uint32{}
	eachAccount(passwd, 7, func(f []string) error {
		uid, err := strconv.ParseUint(f[2], 10, 31)
		if err != nil {
			return err
		}
		gid, err := strconv.ParseUint(f[3], 10, 31)
		if err != nil {
			return err
		}
		a := &user{name: f[0], uid: uint32(uid), gid: uint32(gid), home: f[5], shell: f[6]}
		if a.home == "" {
			a.home = "/"
		}
		if u.byName[a.name] == nil {
			u.byName[a.name] = a
		}
		if u.byUID[a.uid] == nil {
			u.byUID[a.uid] = a
		}
		return nil
	})
	eachAccount(group, 4, func(f []string) error {
		gid, err := strconv.ParseUint(f[2], 10, 31)
		if err != nil {
			return err
		}
		if _, ok := u.groups[uint32(gid)]; !ok {
			u.groups[uint32(gid)], u.gids[f[0]] = f[0], uint32(gid)
		}
		for member := range strings.SplitSeq(f[3], ",") {
			if a := u.byName[member]; a != nil && !slices.Contains(a.groups, uint32(gid)) && len(a.groups) < 1024 {
				a.groups = append(a.groups, uint32(gid))
			}
		}
		return nil
	})
}

// eachAccount calls f with the fields of every line that has enough of them. Lines that f refuses are passed over.
func eachAccount(path string, fields int, f func([]string) error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer file.Close()
	lines := bufio.NewScanner(io.LimitReader(file, maxAccountFile))
	for lines.Scan() {
		if parts := strings.Split(lines.Text(), ":"); len(parts) >= fields && parts[0] != "" {
			_ = f(parts)
		}
	}
}

func stampOf(path string) fileStamp {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return fileStamp{}
	}
	return fileStamp{int64(st.Ino), st.Size, st.Mtim.Nano()}
}

// credential is what a child of the account runs with, or nil where this program cannot become anyone else and need not.
func (a *user) credential() (*syscall.Credential, error) {
	if syscall.Geteuid() != 0 {
		if int(a.uid) == syscall.Geteuid() || a.uid == 0 {
			return nil, nil
		}
		return nil, fail(CodeCannotRun, "the guest runs without root and cannot become %q", a.name)
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups}, nil
}

// String names the account in messages.
func (a *user) String() string { return fmt.Sprintf("%s (%d)", a.name, a.uid) }
