package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/client"
)

// credentialFile is the file in the data folder in which a server on this machine leaves its address and a key for whoever may read it.
const credentialFile = "cli.json"

// Credential is the content of that file.
type Credential struct {
	URL string `json:"url"`
	Key string `json:"key"`
}

// DataDir is the data folder of a server on this machine: BERTH_DATA, else /var/lib/berth for root and ~/.local/share/berth for others.
func DataDir(env func(string) string) string {
	if dir := env("BERTH_DATA"); dir != "" {
		return dir
	}
	if os.Geteuid() == 0 {
		return "/var/lib/berth"
	}
	return filepath.Join(env("HOME"), ".local", "share", "berth")
}

// WriteCredential leaves a credential in a data folder, readable by its owner only. The folder must exist. A reader sees the old one or the new one.
func WriteCredential(dir string, c Credential) error {
	b, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode credential: %w", err)
	}
	f, err := os.CreateTemp(dir, credentialFile+".*") // made with mode 0600
	if err != nil {
		return fmt.Errorf("write credential: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write credential: %w", err), os.Remove(f.Name()))
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, credentialFile)); err != nil {
		return errors.Join(fmt.Errorf("write credential: %w", err), os.Remove(f.Name()))
	}
	return nil
}

// notYours says of a data folder that is another's what to do, and leaves other errors.
func notYours(err error, dir string) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return usagef("the server of %s takes a key from you: put sudo in front, or set BERTH_URL and BERTH_API_KEY", dir)
}

// LocalURL gives the address that the server of a data folder has left there, empty where there is none or it may not be read.
func LocalURL(dir string) (string, error) {
	c, err := readCredential(dir)
	if errors.Is(err, fs.ErrPermission) {
		return "", nil
	}
	return c.URL, err
}

func readCredential(dir string) (Credential, error) {
	b, err := os.ReadFile(filepath.Join(dir, credentialFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Credential{}, nil
	}
	if err != nil {
		return Credential{}, fmt.Errorf("read credential: %w", err)
	}
	var c Credential
	if err := json.Unmarshal(b, &c); err != nil {
		return Credential{}, fmt.Errorf("read credential %s: it is not JSON", filepath.Join(dir, credentialFile))
	}
	return c, nil
}

// connect makes the client: from flags, else the environment, else the server on this machine. The local server's key goes to no other address.
func (a *app) connect() (*client.Client, error) {
	url, key := first(a.url, a.env("BERTH_URL")), first(a.key, a.env("BERTH_API_KEY"))
	if url == "" || key == "" {
		local, err := readCredential(a.dataDir())
		if err != nil && url == "" {
			return nil, notYours(err, a.dataDir())
		}
		url = first(url, local.URL)
		if url == "" {
			return nil, usagef("no server is known: put sudo in front if it is root's, give --url and --key, set BERTH_URL and BERTH_API_KEY, or start one here with: sudo berth serve")
		}
		a.local = url == local.URL
		if key == "" && url == local.URL {
			key = local.Key
		}
	}
	if key == "" {
		return nil, usagef("there is no key for this server: set BERTH_API_KEY or give --key")
	}
	c, err := client.New(url, key, client.UserAgent("berth-cli/"+a.version))
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
