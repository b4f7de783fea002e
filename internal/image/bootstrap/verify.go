package bootstrap

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// check is one thing that must work in the image before anyone gets it.
type check struct{ name, script string }

// checks are run as the user, in an empty folder that is its home.
func checks() []check {
	return []check{
		{"sudo", `test "$(id -un)" = user; test "$(sudo -n id -u)" = 0`},
		{"workspace", `echo x > /workspace/.check; rm /workspace/.check`},
		{"python", `python3 -m venv v; v/bin/pip --version; pip --version; v/bin/python -c 'import ssl, sqlite3'`},
		{"node", `node -e 'process.exit(0)'; npm --version; npx --version`},
		{"compiler", `printf 'int main(void){return 0;}' > a.c; cc -o a a.c; ./a; make --version`},
		{"network tools", `curl --version; git --version; ssh -V; wget --version`},
	}
}

// verify runs the checks. A failing one is UPSTREAM_ERROR with what it printed in the log: the distribution's packages are not what the
// recipe expects.
func verify(ctx context.Context, opts Options, rootfs string) error {
	const stage = "checking the image"
	all := checks()
	opts.progress(stage, 0, int64(len(all)))
	for i, c := range all {
		if err := runCheck(ctx, opts, rootfs, c); err != nil {
			return err
		}
		opts.progress(stage, int64(i+1), int64(len(all)))
	}
	return nil
}

// runCheck runs one check and leaves nothing of it behind.
func runCheck(ctx context.Context, opts Options, rootfs string, c check) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	script := `d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; export HOME=$d; cd "$d"; ` + c.script
	err := inside(ctx, rootfs, userID, "/"+userHome, script, &out).Run()
	fmt.Fprintf(opts.log(), "check %s:\n%s", c.name, out.Bytes())
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("check image: %w", context.Cause(ctx))
	}
	return errs.Wrap(errs.Upstream, fmt.Errorf("%w: %s", err, out.String()), "the bootstrapped image fails its check of %s", c.name).Because("image_check_failed")
}
