package supervisor

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/runtime"
)

// guestPath is where the guest is inside.
const guestPath = "/.berth/guest"

// The environment that tells the guest who may talk to it and where it listens.
const (
	envToken   = "BERTH_GUEST_TOKEN"
	envAddress = "BERTH_GUEST_ADDR"
)

// guestAddress is guest.Port on every address. That package is not linked here for one number; a test compares them.
const guestAddress = ":49980"

// guestProtocol is guest.Protocol, for the same reason.
const guestProtocol = 1

// capabilities are those of root inside: Docker's, and those that tools of a machine of one's own need (mounts and namespaces, debuggers,
// routes). gVisor's kernel holds them; on the host they mean nothing.
func capabilities() *specs.LinuxCapabilities {
	all := []string{
		"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD", "CAP_NET_BIND_SERVICE",
		"CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
		"CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE",
	}
	return &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}
}

// openFiles is the limit of one process inside.
const openFiles = 1 << 20

// ociSpec describes a boot to gVisor: root is the mounted disk, guestFile the program on the host; volumes gives the folder of a volume there.
func ociSpec(spec runtime.Spec, root, netnsPath, guestFile string, volumes func(id string) string) *specs.Spec {
	shm := max(spec.Resources.MemoryMiB/2, 64)
	oci := &specs.Spec{
		Version:  specs.Version,
		Hostname: spec.Hostname,
		Root:     &specs.Root{Path: root},
		Process: &specs.Process{
			Args: []string{guestPath},
			Env: []string{
				"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
				envToken + "=" + spec.GuestToken, envAddress + "=" + guestAddress,
			},
			Cwd:          "/",
			Capabilities: capabilities(),
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: openFiles, Soft: openFiles}},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755", "size=4m"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts"},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777", fmt.Sprintf("size=%dm", shm)}},
			// Named, as gVisor lays a tmpfs over an empty /tmp, and what is written there would be lost at a stop.
			{Destination: "/tmp", Type: "bind", Source: filepath.Join(root, "tmp"), Options: []string{"rbind", "rw"}},
			{Destination: guestPath, Type: "bind", Source: guestFile, Options: []string{"rbind", "ro"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace, Path: netnsPath},
			},
		},
	}
	for _, m := range spec.Mounts {
		if m.Path == "/tmp" {
			oci.Mounts = slices.DeleteFunc(oci.Mounts, func(o specs.Mount) bool { return o.Destination == m.Path })
		}
		access := "rw"
		if m.ReadOnly {
			access = "ro"
		}
		oci.Mounts = append(oci.Mounts, specs.Mount{Destination: m.Path, Type: "bind", Source: volumes(m.Volume), Options: []string{"rbind", access}})
	}
	return oci
}

// visibleCPUs is how many a sandbox is told it has: its share rounded up, at least two, as programs that believe they are alone leave out
// locks that they need when their share moves from one core to another; never more than there are.
func visibleCPUs(vcpu float64, host int) int {
	return min(max(int(math.Ceil(vcpu)), 2), host)
}

// writeBundle writes what gVisor and its re-executed processes read.
func writeBundle(dir string, spec *specs.Spec, j join) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make bundle: %w", err)
	}
	for name, v := range map[string]any{"config.json": spec, joinFile: j} {
		b, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode bundle: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return fmt.Errorf("write bundle: %w", err)
		}
	}
	return nil
}
