package xtest

import (
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
)

// TestHardMemory takes more memory than there is, in the ways there are: the program that does it is killed and it is said, the sandbox and all others go on.
func TestHardMemory(t *testing.T) {
	r := StartReal(t)
	watchCanary(t, r, 30*time.Second)
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{VCPU: 1, MemoryMiB: 256}})
	boot := Must(t, r.Client, api.GetSandbox, in(id)).Sandbox.Generation
	witness := start(t, r.Client, id, "sleep 3600")
	if out := Exec(t, r.Client, id, "printf '#include <stdlib.h>\\n#include <string.h>\\nint main(){for(;;){char*p=malloc(64<<20);memset(p,1,64<<20);}}' > hog.c && gcc -O2 -o hog hog.c && echo built"); out.Stdout != "built\n" {
		t.Fatalf("%+v", out)
	}
	for _, tt := range []struct {
		name   string
		run    api.CommandIn
		code   int
		stdout string
	}{
		{"at once", api.CommandIn{Argv: []string{"python3", "-c", "b = bytearray(2560 << 20); print(len(b))"}}, 137, ""},
		{"in C", api.CommandIn{Argv: []string{"./hog"}}, 137, ""},
		{"four of them", api.CommandIn{Command: "./hog & ./hog & ./hog & ./hog & wait; echo over"}, 0, "over\n"},
		{"in a child", api.CommandIn{Command: "./hog; echo $?"}, 0, "137\n"},
		{"as root", api.CommandIn{Argv: []string{"./hog"}, User: "root"}, 137, ""},
		{"in a file of memory", api.CommandIn{Argv: []string{"python3", "-c", "import os\nf = os.memfd_create('x')\nwhile True: os.write(f, b'x' * (1 << 20))"}}, 137, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, e := run(t, r.Client, id, tt.run, 60)
			if e != nil {
				t.Fatalf("%+v", e)
			}
			if !out.OutOfMemory || out.ExitCode == nil || *out.ExitCode != tt.code || out.Stdout != tt.stdout || out.TimedOut {
				t.Errorf("outOfMemory %v, exit %v, timed out %v, stdout %q, stderr %q", out.OutOfMemory, out.ExitCode, out.TimedOut, out.Stdout, out.Stderr)
			}
			p := Must(t, r.Client, api.GetProcess, proc(id, out.ProcessID)).Process
			if !p.OutOfMemory {
				t.Errorf("its process does not say so: %+v", p)
			}
		})
	}
	t.Run("in a folder of memory", func(t *testing.T) {
		// It is limited to half of the memory.
		out, e := run(t, r.Client, id, api.CommandIn{Command: "head -c 2560M /dev/zero > /dev/shm/x; echo $?; rm /dev/shm/x"}, 60)
		if e != nil || out.Stdout != "1\n" || !strings.Contains(out.Stderr, "No space left") {
			t.Errorf("%+v %+v", out, e)
		}
	})
	t.Run("files are no memory", func(t *testing.T) {
		out, e := run(t, r.Client, id, api.CommandIn{Command: "head -c 400M /dev/zero > big && python3 -c \"import mmap; f = open('big'); m = mmap.mmap(f.fileno(), 0, prot=1); print(sum(m[i] for i in range(0, len(m), 65536)))\"; rm big"}, 120)
		if e != nil || out.Stdout != "0\n" || out.OutOfMemory {
			t.Errorf("%+v %+v", out, e)
		}
	})
	if out := Exec(t, r.Client, id, "echo on"); out.Stdout != "on\n" || out.OutOfMemory {
		t.Errorf("afterwards: %+v", out)
	}
	if sb := Must(t, r.Client, api.GetSandbox, in(id)).Sandbox; sb.Generation != boot || sb.State != api.StateRunning {
		t.Errorf("the sandbox is %s (%s), generation %d, was %d", sb.State, sb.StopReason, sb.Generation, boot)
	}
	if p := Must(t, r.Client, api.GetProcess, proc(id, witness)).Process; p.State != "running" || p.OutOfMemory {
		t.Errorf("a small process beside it: %+v", p)
	}
}
