package cli

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/coder/websocket"
	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// sshOptions are what berth sandboxes ssh takes beside its operation's input.
type sshOptions struct {
	config, proxy, prepare bool
	args                   []string
}

// renewBefore is how long a certificate must still be good for to be used once more.
const renewBefore = 2 * time.Minute

func (c *command) sshFlags(cmd *cobra.Command) {
	cmd.Use = "ssh SANDBOX [flags] [-- COMMAND [ARG]...]"
	cmd.Short = "Log in to a sandbox with OpenSSH's client"
	cmd.Long = "Logs in to a sandbox, given by its id or name, or runs a command there, with the ssh program of this machine, a fresh key and a certificate for it.\n\n" +
		"With --config it prints what ~/.ssh/config needs so that ssh NAME.berth works by itself, and with it scp, rsync, sftp, git and editors. " +
		"With --public-key it only signs that key.\n\n" + c.long()
	f := cmd.Flags()
	f.BoolVar(&c.ssh.config, "config", false, "print the part of ~/.ssh/config for sandboxes")
	f.BoolVar(&c.ssh.proxy, "proxy", false, "be the ProxyCommand of an SSH client")
	f.BoolVar(&c.ssh.prepare, "prepare", false, "make the certificate that --config's part names")
	f.StringArrayVar(&c.ssh.args, "ssh", nil, "an argument for ssh itself, such as --ssh=-L8080:localhost:80")
	_ = f.MarkHidden("prepare")
}

// runSSH does what is asked of ssh other than the bare operation.
func (c *command) runSSH(cmd *cobra.Command, args []string) error {
	if c.ssh.config {
		if len(args) > 0 {
			return usagef("--config takes no arguments")
		}
		return c.sshConfig()
	}
	if len(args) == 0 {
		return usagef("%s needs SANDBOX, an id or a name", cmd.CommandPath())
	}
	conn, err := c.connect()
	if err != nil {
		return c.proxySays(err)
	}
	user := ""
	if f := cmd.Flags().Lookup("user"); f.Changed {
		user = f.Value.String()
	}
	switch {
	case c.ssh.proxy:
		return c.sshProxy(cmd.Context(), conn, args[0])
	case c.ssh.prepare:
		return c.sshPrepare(cmd.Context(), conn, args[0], first(user, "user"))
	}
	return c.sshRun(cmd.Context(), conn, args[0], first(user, "user"), args[1:])
}

// proxySays leaves to the proxy, which runs next and meets the same, what keeps --prepare from finding the sandbox: ssh shows both.
func (c *command) proxySays(err error) error {
	if c.ssh.prepare {
		return ExitError{exitFailed}
	}
	return err
}

// sshRun runs ssh with a key that is made for this one run.
func (c *command) sshRun(ctx context.Context, conn *client.Client, name, user string, command []string) error {
	id, err := c.sandboxID(ctx, conn, name)
	if err != nil {
		return err
	}
	program, err := exec.LookPath("ssh")
	if err != nil {
		return usagef("there is no ssh program here: install OpenSSH's client, or use berth sandboxes shell")
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	dir, err := os.MkdirTemp("", "berth-ssh-") // made with mode 0700
	if err != nil {
		return fmt.Errorf("make a folder for the key: %w", err)
	}
	defer os.RemoveAll(dir)
	key := filepath.Join(dir, "key")
	public, err := makeKey(key)
	if err != nil {
		return err
	}
	cert, err := client.Call(ctx, conn, api.SSH, api.SSHIn{SandboxIn: api.SandboxIn{SandboxID: id}, PublicKey: public, User: user})
	if err != nil {
		return err
	}
	known := filepath.Join(dir, "known_hosts")
	if err := errors.Join(writePrivate(key+"-cert.pub", cert.Certificate+"\n"), writePrivate(known, cert.KnownHosts+"\n")); err != nil {
		return err
	}
	args := []string{
		"-o", "ProxyCommand=" + quoted(self) + " sandboxes ssh --proxy " + id, "-o", "User=" + user, "-o", "IdentityFile=" + key,
		"-o", "CertificateFile=" + key + "-cert.pub", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "UserKnownHostsFile=" + known,
		"-o", "GlobalKnownHostsFile=/dev/null", "-o", "StrictHostKeyChecking=yes", "-o", "UpdateHostKeys=no", "-o", "ForwardAgent=no", "-o", "LogLevel=ERROR",
	}
	args = append(append(args, c.ssh.args...), cert.Host)
	run := exec.Command(program, append(args, command...)...) //nolint:gosec // the ssh of this machine
	run.Stdin, run.Stdout, run.Stderr = c.stdin, c.stdout, c.stderr
	run.Env = c.childEnv(os.Environ())
	err = run.Run() // interrupts are ssh's own
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return ExitError{max(exit.ExitCode(), exitFailed)}
	}
	return err
}

// childEnv lets a child of this program reach the same server.
func (a *app) childEnv(env []string) []string {
	for name, v := range map[string]string{"BERTH_URL": a.url, "BERTH_API_KEY": a.key} {
		if v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// sshProxy carries an SSH client's bytes.
func (c *command) sshProxy(ctx context.Context, conn *client.Client, name string) error {
	id, err := c.sandboxID(ctx, conn, name)
	if err != nil {
		return err
	}
	ws, err := client.Socket(ctx, conn, api.SSHConnect, api.SandboxIn{SandboxID: id})
	if err != nil {
		return err
	}
	defer func() { _ = ws.CloseNow() }()
	stream := websocket.NetConn(ctx, ws, websocket.MessageBinary)
	go func() {
		_, _ = io.Copy(stream, c.stdin)
		_ = ws.Close(websocket.StatusNormalClosure, "") // the client is done
	}()
	_, err = io.Copy(c.stdout, stream)
	if err == nil || websocket.CloseStatus(err) == websocket.StatusNormalClosure || errors.Is(err, io.EOF) {
		return nil
	}
	c.note("the connection is lost")
	return ExitError{exitFailed}
}

// sshDir is where the key and the certificates of --config are.
func (a *app) sshDir() (string, error) {
	base := a.env("XDG_CONFIG_HOME")
	if base == "" {
		if a.env("HOME") == "" {
			return "", usagef("HOME is not set")
		}
		base = filepath.Join(a.env("HOME"), ".config")
	}
	dir := filepath.Join(base, "berth", "ssh")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make a folder for keys: %w", err)
	}
	return dir, nil
}

// identity gives the public key of --config and makes the pair where there is none.
func identity(dir string) (string, error) {
	key := filepath.Join(dir, "id_ed25519")
	b, err := os.ReadFile(key + ".pub")
	if err == nil {
		return string(b), nil
	}
	public, err := makeKey(key)
	if err != nil {
		return "", err
	}
	return public, writePrivate(key+".pub", public)
}

// sshConfig prints the part of ~/.ssh/config. Match exec runs before ssh reads the certificate, so that there always is a good one.
func (c *command) sshConfig() error {
	dir, err := c.sshDir()
	if err != nil {
		return err
	}
	if _, err := identity(dir); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	server := ""
	if c.url != "" {
		server = " --url " + c.url
	}
	_, err = fmt.Fprintf(c.stdout, `# Sandboxes of Berth, by name or id: ssh NAME.berth, scp, rsync, sftp, git, editors.
Host *.berth
  User user
  IdentityFile "%[1]s/id_ed25519"
  CertificateFile "%[1]s/%%n-%%r-cert.pub"
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile "%[1]s/known_hosts"
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  UpdateHostKeys no
  ForwardAgent no
  ProxyCommand %[2]s%[3]s sandboxes ssh --proxy %%n
Match originalhost *.berth exec "%[2]s%[3]s sandboxes ssh --prepare --user %%r %%n"
`, dir, quoted(self), server)
	return err
}

// sshPrepare makes sure that there is a good certificate for a host of --config's part.
func (c *command) sshPrepare(ctx context.Context, conn *client.Client, host, user string) error {
	name := strings.TrimSuffix(host, sshDomain)
	if !sandboxName.MatchString(name) || !safeUser(user) {
		return usagef("%q is neither the id nor the name of a sandbox, or %q no user", name, user)
	}
	dir, err := c.sshDir()
	if err != nil {
		return err
	}
	public, err := identity(dir)
	if err != nil {
		return err
	}
	sandbox, err := c.sandboxID(ctx, conn, name)
	if err != nil {
		return c.proxySays(err)
	}
	file := filepath.Join(dir, host+"-"+user+"-cert.pub")
	if good(file, sandbox, time.Now().Add(renewBefore)) {
		return nil
	}
	cert, err := client.Call(ctx, conn, api.SSH, api.SSHIn{SandboxIn: api.SandboxIn{SandboxID: sandbox}, PublicKey: strings.TrimSpace(public), User: user})
	if err != nil {
		return err
	}
	return errors.Join(writePrivate(filepath.Join(dir, "known_hosts"), cert.KnownHosts+"\n"), writePrivate(file, cert.Certificate+"\n"))
}

func safeUser(user string) bool {
	return user != "" && len(user) <= 32 && !strings.ContainsFunc(user, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_.-", r)
	}) && user[0] != '.' && user[0] != '-'
}

// good reports whether a certificate is for a sandbox and lasts beyond a time.
func good(file, id string, until time.Time) bool {
	b, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	k, _, _, _, err := ssh.ParseAuthorizedKey(b)
	cert, ok := k.(*ssh.Certificate)
	return err == nil && ok && len(cert.ValidPrincipals) == 1 && cert.ValidPrincipals[0] == id && cert.ValidBefore > uint64(until.Unix()) //nolint:gosec // after 1970
}

// makeKey writes a fresh private key and gives its public half as OpenSSH writes it.
func makeKey(path string) (string, error) {
	pub, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, "berth")
	if err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	k, err := ssh.NewPublicKey(pub)
	if err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))), writePrivate(path, string(pem.EncodeToMemory(block)))
}

// writePrivate writes a file whole, for its owner alone.
func writePrivate(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}

// quoted is a path as a shell and ssh take it, where it needs that.
func quoted(path string) string {
	if strings.ContainsAny(path, " '\"\\$`") {
		return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
	return path
}
