package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// The user that everything in a sandbox runs as unless asked otherwise.
const (
	userName = "user"
	userID   = 1000
	userHome = "home/user"
)

// imageFile is a file that the image has beside those of its packages.
type imageFile struct {
	name, text string
	mode       os.FileMode
	user       bool // belongs to the user, not to root
}

// imageFiles are the image's own files. apt are the host's settings that packages could not be had without.
func imageFiles(apt []string) []imageFile {
	return []imageFile{
		{name: "etc/resolv.conf", text: "# Written for each sandbox.\n"},
		{name: "etc/hostname", text: "sandbox\n"},
		{name: "etc/hosts", text: "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n"},
		// An empty /tmp would be taken as one to mount a temporary file system on, which snapshots of the disk would lose.
		{name: "tmp/.keep"},
		{name: "etc/sudoers.d/user", text: userName + " ALL=(ALL:ALL) NOPASSWD: ALL\n", mode: 0o440},
		{name: "etc/environment", text: "PATH=\"/home/user/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"\nLANG=\"C.UTF-8\"\n"},
		{name: "etc/default/locale", text: "LANG=C.UTF-8\n"},
		{name: "etc/apt/apt.conf.d/90berth", text: "Acquire::Languages \"none\";\n" + lines(apt)},
		{name: "etc/dpkg/dpkg.cfg.d/90berth", text: lines(slimming())},
		// There is no service manager: a package's service is started by whoever wants it.
		{name: "usr/sbin/policy-rc.d", text: "#!/bin/sh\nexit 101\n", mode: 0o755},
		// `npm install --global` works without sudo and lands where pip's commands do.
		{name: userHome + "/.npmrc", text: "prefix=/home/user/.local\nupdate-notifier=false\nfund=false\naudit=false\n", user: true},
	}
}

// finish turns a bootstrapped tree into the base image: the user, our own files, npm, certificates; and removes what was only for the making.
func finish(ctx context.Context, opts Options, rootfs string, apt []string, npm npmPackage) error {
	const stage = "writing the image's own files"
	opts.progress(stage, 0, 1)
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return fmt.Errorf("open image: %w", err)
	}
	defer root.Close()
	if err := addUser(root); err != nil {
		return fmt.Errorf("add user to image: %w", err)
	}
	for _, name := range []string{"etc/apt/apt.conf.d/99mmdebstrap", "etc/dpkg/dpkg.cfg.d/99mmdebstrap", "etc/resolv.conf", "etc/hostname"} {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("clean image: %w", err)
		}
	}
	for _, f := range imageFiles(apt) {
		if err := f.write(root); err != nil {
			return fmt.Errorf("write /%s into image: %w", f.name, err)
		}
	}
	if npm.tarball != "" {
		if err := npm.install(root); err != nil {
			return fmt.Errorf("install npm into image: %w", err)
		}
	}
	if opts.TrustHostCA != "" {
		if err := trust(ctx, opts, rootfs, root); err != nil {
			return err
		}
	}
	for _, dir := range []string{"var/lib/apt/lists", "var/cache/apt/archives", "var/log/apt"} {
		if err := emptyDir(root, dir); err != nil {
			return fmt.Errorf("empty /%s of image: %w", dir, err)
		}
	}
	opts.progress(stage, 1, 1)
	return nil
}

// write makes the file, and its folder where that is missing.
func (f imageFile) write(root *os.Root) error {
	if err := makeDirs(root, path.Dir(f.name)); err != nil {
		return err
	}
	mode := f.mode
	if mode == 0 {
		mode = 0o644
	}
	if err := writeStream(root, f.name, mode, strings.NewReader(f.text)); err != nil {
		return err
	}
	if f.user {
		return root.Lchown(f.name, userID, userID)
	}
	return nil
}

// addUser writes the user into the account files and makes its folders. The password is one that nothing matches.
func addUser(root *os.Root) error {
	for _, a := range []struct{ file, line string }{
		{"etc/passwd", fmt.Sprintf("%s:x:%d:%d::/%s:/bin/bash", userName, userID, userID, userHome)},
		{"etc/group", fmt.Sprintf("%s:x:%d:", userName, userID)},
		{"etc/shadow", userName + ":*:20000:0:99999:7:::"},
		{"etc/gshadow", userName + ":*::"},
	} {
		if err := appendAccount(root, a.file, a.line); err != nil {
			return err
		}
	}
	for _, dir := range []string{userHome, userHome + "/.local", userHome + "/.local/bin", "workspace"} {
		if err := makeDirs(root, dir); err != nil {
			return err
		}
		if err := root.Chown(dir, userID, userID); err != nil {
			return err
		}
	}
	skel, err := fs.ReadDir(root.FS(), "etc/skel")
	if err != nil {
		return err
	}
	for _, e := range skel {
		if !e.Type().IsRegular() {
			continue
		}
		data, err := root.ReadFile("etc/skel/" + e.Name())
		if err != nil {
			return err
		}
		if err := (imageFile{name: userHome + "/" + e.Name(), text: string(data), user: true}).write(root); err != nil {
			return err
		}
	}
	return nil
}

// makeDirs makes a folder of the image and those above it, each 0755 whatever the umask is. What is there already is left as it is.
func makeDirs(root *os.Root, dir string) error {
	if err := root.Mkdir(dir, 0o755); errors.Is(err, fs.ErrNotExist) {
		if err := makeDirs(root, path.Dir(dir)); err != nil {
			return err
		}
		if err := root.Mkdir(dir, 0o755); err != nil {
			return err
		}
	} else if errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	return root.Chmod(dir, 0o755)
}

// appendAccount adds a line to an account file; an account of that name already there is an error, since it might be someone else's id.
func appendAccount(root *os.Root, file, line string) error {
	data, err := root.ReadFile(file)
	if err != nil {
		return err
	}
	name, _, _ := strings.Cut(line, ":")
	for have := range strings.Lines(string(data)) {
		if strings.HasPrefix(have, name+":") {
			return fmt.Errorf("/%s has %q already", file, name)
		}
	}
	text := string(data)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	f, err := root.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text + line + "\n")
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// emptyDir removes what is in a folder of the image and keeps the folder.
func emptyDir(root *os.Root, dir string) error {
	entries, err := fs.ReadDir(root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		// apt expects this one and makes it with odd owners.
		if e.Name() == "partial" {
			continue
		}
		if err := root.RemoveAll(dir + "/" + e.Name()); err != nil {
			return err
		}
	}
	return nil
}

func lines(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, "\n") + "\n"
}
