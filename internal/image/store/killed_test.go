package store

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/image/registrytest"
	"github.com/berthrun/berth/internal/nodeapi"
)

// The environment of the process that is killed.
const (
	childNode = "BERTH_TEST_STORE_NODE"
	childRef  = "BERTH_TEST_STORE_REF"
)

// TestKilledChild is the process that TestKilled kills: it pulls and tells each phase.
func TestKilledChild(t *testing.T) {
	node, ref := os.Getenv(childNode), os.Getenv(childRef)
	if node == "" {
		t.Skip("only as the process of TestKilled")
	}
	host, _, _ := strings.Cut(ref, "/")
	s := open(t, node, Limits{}, host)
	r := nodeapi.ImageRequest{Scope: alpha, Ref: ref}
	found, err := s.Resolve(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	r.Digest = found.Digest
	told := map[string]bool{}
	_, err = s.Pull(t.Context(), r, func(p nodeapi.ImageProgress) {
		if p.Done > 0 && !told[p.Phase] {
			told[p.Phase] = true
			fmt.Println(p.Phase)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("whole")
}

// TestKilled: a process that is killed while it fetches, and one while it unpacks, leave nothing that is taken for an image. The next one removes mounts
// and folders, fetches only what is missing, and has the image whole.
func TestKilled(t *testing.T) {
	needRoot(t)
	for _, phase := range []string{nodeapi.PhasePulling, nodeapi.PhaseUnpacking} {
		t.Run(phase, func(t *testing.T) {
			reg := registrytest.Start(t, registrytest.Open)
			lower := layerOf(t, "gzip", file("lower", strings.Repeat("l", 1<<20)))
			var many []tar.Header
			for i := range 20_000 {
				many = append(many, file(fmt.Sprintf("d%d/f%d", i%100, i), "x"))
			}
			img := registrytest.Image(t, v1.Config{}, lower, layerOf(t, "", many...))
			ref := reg.Push(t, "a:1", img)
			node := t.TempDir()
			if phase == nodeapi.PhasePulling {
				// Half of the second layer, then nothing.
				layers, err := img.Layers()
				if err != nil {
					t.Fatal(err)
				}
				slow := digestFor(t, layers[1])
				reg.Fault(func(w http.ResponseWriter, r *http.Request) bool {
					if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, slow) {
						return false
					}
					w.Header().Set("Content-Length", "20000000")
					_, _ = w.Write(make([]byte, 1<<20))
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
					return true
				})
			}
			killIn(t, phase, node, ref)
			reg.Fault(nil)
			if _, err := os.Stat(disk.StackFile(disk.PulledDir(node), registrytest.Digest(t, img))); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it is taken for whole: %v", err)
			}
			host, _, _ := strings.Cut(ref, "/")
			s := open(t, node, Limits{}, host)
			if left := names(t, s.path(tmpDir)); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), node) {
				t.Errorf("mounts are left, %v", err)
			}
			reg.Requests()
			got := mustPull(t, s, alpha, ref)
			for _, q := range reg.Requests() {
				if phase == nodeapi.PhaseUnpacking && strings.HasPrefix(q, "GET ") && strings.Contains(q, "/blobs/") {
					t.Errorf("fetched again: %s", q)
				}
			}
			if all := see(t, node, got.ID); len(all) != 20_001 || len(all["lower"]) != 1<<20 {
				t.Errorf("%d files", len(all))
			}
		})
	}
}

// killIn has another process pull, and kills it in a phase.
func killIn(t *testing.T, phase, node, ref string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledChild$") //nolint:gosec // this program
	cmd.Env = append(os.Environ(), childNode+"="+node, childRef+"="+ref)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "whole" {
			t.Error("it was whole before it was killed")
		}
		if lines.Text() == phase {
			seen = true
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait()
	if !seen {
		t.Fatalf("it never came to %s", phase)
	}
}
