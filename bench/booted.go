package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// slowServer is a web server that takes five seconds to boot.
const slowServer = `
import http.server, time
held = bytearray(64 << 20)
for i in range(0, len(held), 4096):
    held[i] = 1 + i % 255
time.sleep(5)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"served\n")
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
`

// asks is one request of that server, from inside. It fails where the server does not answer.
var asks = []string{"curl", "-fsS", "--max-time", "20", "--retry", "100", "--retry-delay", "0", "--retry-connrefused", "http://127.0.0.1:8000/"}

// booted: a create from a template whose server takes five seconds to boot, to the first request that it answers, beside a restore of the same server.
func (b *bench) booted(ctx context.Context, s *server, rootfs string) error {
	if err := s.build(ctx); err != nil {
		return err
	}
	r, err := b.newRaw(rootfs, 6000)
	if err != nil {
		return err
	}
	defer r.end()
	r.net = "none"
	sp := spec(filepath.Join(r.dir, "rootfs"))
	sp["process"].(map[string]any)["args"] = []string{"python3", "-c", slowServer}
	config, err := json.Marshal(sp)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.dir, "config.json"), config, 0o600); err != nil {
		return err
	}
	began := time.Now()
	if err := r.run(ctx); err != nil {
		return err
	}
	for {
		err := r.asked(ctx)
		if err == nil {
			break
		}
		if time.Since(began) > time.Minute || ctx.Err() != nil {
			return fmt.Errorf("the peer's server: %w", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	image := filepath.Join(r.dir, "image")
	if err := r.checkpoint(ctx, image, false); err != nil {
		return err
	}
	var ours []time.Duration
	var theirs rawTimes
	for i := range b.rounds + 1 {
		var out sandboxOut
		d, err := timed(func() error {
			if err := s.call(ctx, "create_sandbox", map[string]any{"template": "bench-booted"}, &out); err != nil {
				return err
			}
			return s.answers(ctx, out.Sandbox.ID)
		})
		if err = errors.Join(err, s.delete(ctx, out.Sandbox.ID)); err != nil {
			return err
		}
		if i > 0 {
			ours = append(ours, d)
		}
		err = theirs.add(i > 0, func(direct bool) (time.Duration, error) {
			defer r.kill(ctx)
			return timed(func() error {
				if err := r.restore(ctx, image, direct); err != nil {
					return err
				}
				return r.asked(ctx)
			})
		})
		if err != nil {
			return err
		}
	}
	best, name := theirs.best("and a request by `runsc exec curl`")
	b.add("create from a template whose server takes 5 s to boot, to its first answer", ours, name, best, 1.1)
	return nil
}

// build builds the template with the server.
func (s *server) build(ctx context.Context) error {
	steps := []map[string]any{{"type": "RUN", "command": "cat > /workspace/server.py <<'END'\n" + slowServer + "END"}}
	in := map[string]any{
		"name": "bench-booted", "fromTemplate": "base", "steps": steps, "memoryMiB": 512, "startCmd": "exec python3 /workspace/server.py",
		"readyCmd": "curl -fsS http://127.0.0.1:8000/",
	}
	var out struct{ BuildID string }
	if err := s.call(ctx, "build_template", in, &out); err != nil {
		return err
	}
	for ctx.Err() == nil {
		var got struct {
			Build struct{ Status, Reason string }
		}
		if err := s.call(ctx, "get_build_status", map[string]any{"buildId": out.BuildID}, &got); err != nil {
			return err
		}
		switch got.Build.Status {
		case "ready":
			return nil
		case "error":
			return fmt.Errorf("build template: %s", got.Build.Reason)
		}
		time.Sleep(200 * time.Millisecond)
	}
	return ctx.Err()
}

// answers makes one request of the server inside.
func (s *server) answers(ctx context.Context, sandbox string) error {
	var out struct {
		ExitCode int
		Stderr   string
	}
	if err := s.call(ctx, "run_command", map[string]any{"sandboxId": sandbox, "argv": asks}, &out); err != nil {
		return err
	}
	if out.ExitCode != 0 {
		return fmt.Errorf("the server does not answer: %s", out.Stderr)
	}
	return nil
}

func (r *raw) asked(ctx context.Context) error {
	if out, err := r.command(ctx, append([]string{"exec", r.id}, asks...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("runsc exec: %w: %s", err, out)
	}
	return nil
}
