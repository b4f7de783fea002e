package bootstrap

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"

	"github.com/berthrun/berth/internal/errs"
)

// recipeVersion is raised whenever what this package makes of the same packages changes.
const recipeVersion = 1

// npmSpec is the npm that images get when the host has an npm to fetch it with. It runs on node 18.17 and later.
const npmSpec = "npm@10"

// tools are the packages that every base image has, in the distribution's names.
func tools() []string {
	return []string{
		"bash", "ca-certificates", "sudo", "less", "procps", "iproute2", "iputils-ping", "file", "tzdata",
		"python3", "python3-pip", "python3-venv", "python3-dev", "python-is-python3",
		"nodejs", "build-essential", "git", "openssh-client",
		"curl", "wget", "jq", "ripgrep", "unzip", "zip", "xz-utils", "bzip2", "rsync", "netcat-openbsd", "vim-tiny", "nano",
	}
}

// recipe is all that decides what an image holds, apart from how new the distribution's packages are. Its digest is the image's id.
type recipe struct {
	Version      int      `json:"version"`
	Distribution string   `json:"distribution"`
	Suite        string   `json:"suite"`
	Arch         string   `json:"arch"` // as Go names it
	Packages     []string `json:"packages"`
	NPM          string   `json:"npm"`
	CA           string   `json:"ca,omitempty"` // digest of the certificates that are trusted too
}

// packageName is the form that Debian gives package names; it also keeps an option from being passed as a package.
var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)

// newRecipe makes the recipe that opts ask for on a host. A malformed package name or an unreadable certificate file is INVALID_CONFIG.
func newRecipe(h host, opts Options) (recipe, error) {
	r := recipe{
		Version: recipeVersion, Distribution: h.id, Suite: opts.Suite, Arch: runtime.GOARCH,
		Packages: append(tools(), opts.ExtraPackages...), NPM: npmSpec,
	}
	if r.Suite == "" {
		r.Suite = h.codename
	}
	for _, p := range opts.ExtraPackages {
		if !packageName.MatchString(p) {
			return recipe{}, errs.E(errs.InvalidConfig, "%q is not the name of a package", p)
		}
	}
	slices.Sort(r.Packages)
	r.Packages = slices.Compact(r.Packages)
	if opts.TrustHostCA != "" {
		pem, err := os.ReadFile(opts.TrustHostCA)
		if err != nil {
			return recipe{}, errs.Wrap(errs.InvalidConfig, err, "the certificates to trust cannot be read from %s", opts.TrustHostCA)
		}
		sum := sha256.Sum256(pem)
		r.CA = hex.EncodeToString(sum[:])
	}
	return r, nil
}

// id is the digest of the recipe, 32 hexadecimal digits.
func (r recipe) id() string {
	data, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("encode recipe: %v", err)) // strings and integers only: cannot fail
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])[:32]
}
