package xtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	mrand "math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
)

// minted is a certificate that is valid from this second on.
func minted(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "minted"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Truncate(time.Second), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// Symptoms 1 to 5 and 7. A pause that nobody asked for keeps what one that was asked for keeps, each time; what is valid from now on is valid inside after each wake, and a command
// that somebody is following goes on.
func TestSleepsOfItsOwn(t *testing.T) {
	t.Parallel()                                         // it waits more than it works
	r := StartReal(t, "--sandboxes-frozen-seconds", "0") // to disk at once
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 512}, IdlePauseSeconds: new(60)})
	writes := `exec 3>>log; i=0; while read line; do i=$((i+1)); echo $i >&3; echo "$line $i" > last; echo "got $line"; done`
	p := Must(t, r.Client, api.StartProcess, api.StartProcessIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: writes}, OpenStdin: true}).Process.ID
	for n := range 3 {
		word, line := "round"+strconv.Itoa(n), n+1
		Must(t, r.Client, api.ProcessInput, api.ProcessInputIn{ProcessIn: proc(id, p), Data: word + "\n"})
		eventually(t, func() bool {
			return strings.HasSuffix(Must(t, r.Client, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(id, p)}).Data, "got "+word+"\n")
		})
		if n == 1 {
			eventuallyIn(t, 2*time.Minute, func() bool {
				sb := Must(t, r.Client, api.GetSandbox, in(id)).Sandbox
				return sb.State == api.StatePaused && sb.Depth == api.DepthDisk
			})
		} else {
			Must(t, r.Client, api.PauseSandbox, waiting(id, 30))
		}
		if woke := Must(t, r.Client, api.WakeSandbox, waiting(id, 30)); woke.Sandbox.State != api.StateRunning {
			t.Fatalf("%s: %+v", word, woke)
		}
		Must(t, r.Client, api.WriteFile, api.WriteFileIn{FileIn: file(id, "cert.pem"), Data: minted(t)})
		out := Exec(t, r.Client, id, "openssl verify -CAfile cert.pem cert.pem >&2; cat last; wc -l < log")
		if out.Stdout != word+" "+strconv.Itoa(line)+"\n"+strconv.Itoa(line)+"\n" || !strings.Contains(out.Stderr, "cert.pem: OK") {
			t.Errorf("%s: %s%s", word, out.Stdout, out.Stderr)
		}
	}
}

// Servers, and now and then runtimes, that are killed at any moment of a pause, a wake, a fork and a snapshot: repeated with its key the call is carried out
// once, and what ran before runs.
func TestKilledServers(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := StartReal(t)
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 512}})
	Exec(t, r.Client, id, "echo kept > file")
	p := start(t, r.Client, id, "i=0; while :; do i=$((i+1)); echo $i > .new; mv .new count; sleep 0.02; done")
	count := func(sandbox string) (n int) {
		t.Helper()
		eventually(t, func() bool {
			var err error
			n, err = strconv.Atoi(strings.TrimSpace(Exec(t, r.Client, sandbox, "cat count").Stdout))
			return err == nil
		})
		return n
	}
	snapshots := 0
	before := count(id)
	for round := range 12 {
		k, op := key(), []string{"pause", "wake", "fork", "snapshot"}[round%4]
		call := lifeCall(op, id, k, "")
		first, ended := r.Client, make(chan struct{})
		go func() {
			defer close(ended)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_, _ = call(ctx, first)
		}()
		after := time.Duration(mrand.Int64N(int64(1200 * time.Millisecond)))
		time.Sleep(after)
		r.Kill()
		if round%3 == 2 {
			r.KillRuntime()
		}
		<-ended
		r.Serve()
		t.Logf("round %d: %s, killed after %s", round, op, after)
		out := again[any](t, r.Client, call)
		switch op {
		case "pause":
			// It stays asleep for the wake.
			eventually(t, func() bool {
				sb := Must(t, r.Client, api.GetSandbox, in(id)).Sandbox
				return sb.State == api.StatePaused && sb.Depth == api.DepthDisk
			})
			continue
		case "fork":
			made := out.(api.ForkSandboxOut)
			if len(made.Items) != 2 {
				t.Errorf("%+v", made)
			}
			for _, one := range made.Items {
				eventually(t, func() bool {
					s := Must(t, r.Client, api.GetSandbox, in(one.SandboxID)).Sandbox.State
					return s == api.StateRunning || s == api.StateFailed
				})
				if got := count(one.SandboxID); got < before {
					t.Errorf("a copy is at %d, and it was at %d", got, before)
				}
				Must(t, r.Client, api.DeleteSandbox, waiting(one.SandboxID, 30))
			}
			if all := Must(t, r.Client, api.ListSandboxes, api.ListSandboxesIn{}).Items; len(all) != 1 {
				t.Errorf("%d sandboxes after the copies were deleted", len(all))
			}
		case "snapshot":
			snapshots++
			if all := Must(t, r.Client, api.ListSnapshots, api.ListSnapshotsIn{}).Items; len(all) != snapshots {
				t.Errorf("%d snapshots, and %d were asked for", len(all), snapshots)
			}
		}
		if got := Exec(t, r.Client, id, "cat file"); got.Stdout != "kept\n" || got.Woke == "boot" {
			t.Fatalf("its file: %+v", got)
		}
		at := count(id)
		if at < before {
			t.Errorf("it counted to %d before, and is at %d", before, at)
		}
		before = at
		if info := Must(t, r.Client, api.GetProcess, proc(id, p)).Process; info.State != "running" {
			t.Fatalf("its process: %+v", info)
		}
	}
}
