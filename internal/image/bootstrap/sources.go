package bootstrap

import (
	"bytes"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Source is one place that packages come from.
type Source struct {
	URI        string   // http://…, https://…, file:…
	Suite      string   // bookworm, bookworm-security
	Components []string // main
	Options    []string // in the one-line form: signed-by=/usr/share/keyrings/…, trusted=yes
}

// String is the source in apt's one-line form.
func (s Source) String() string {
	opts := ""
	if len(s.Options) > 0 {
		opts = "[" + strings.Join(s.Options, " ") + "] "
	}
	return "deb " + opts + s.URI + " " + s.Suite + " " + strings.Join(s.Components, " ")
}

// hostSources reads every source of binary packages that the host's apt is configured with: sources.list, and the .list and .sources files
// beside it in the order of their names. Entries that are switched off, malformed or on a disc are left out.
func hostSources(root fs.FS) ([]Source, error) {
	const dir = "etc/apt/sources.list.d"
	names := []string{"etc/apt/sources.list"}
	entries, err := fs.ReadDir(root, dir)
	if err != nil && !isNotExist(err) {
		return nil, errs.Wrap(errs.InvalidConfig, err, "the package sources in /%s cannot be read", dir)
	}
	for _, e := range entries {
		if ext := path.Ext(e.Name()); ext == ".list" || ext == ".sources" {
			names = append(names, path.Join(dir, e.Name()))
		}
	}
	var all []Source
	for _, name := range names {
		data, err := fs.ReadFile(root, name)
		if isNotExist(err) {
			continue
		}
		if err != nil {
			return nil, errs.Wrap(errs.InvalidConfig, err, "the package sources in /%s cannot be read", name)
		}
		if path.Ext(name) == ".sources" {
			all = append(all, parseDeb822(data)...)
		} else {
			all = append(all, parseOneLine(data)...)
		}
	}
	for i := range all {
		all[i].URI = firstMirror(root, all[i].URI)
	}
	return all, nil
}

// parseOneLine reads the `deb [options] uri suite component…` form.
func parseOneLine(data []byte) []Source {
	var all []Source
	for line := range bytes.Lines(data) {
		text, _, _ := strings.Cut(string(line), "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(text), "deb")
		if !ok || rest == "" || (rest[0] != ' ' && rest[0] != '\t' && rest[0] != '[') {
			continue
		}
		rest = strings.TrimSpace(rest)
		var opts []string
		if strings.HasPrefix(rest, "[") {
			inside, after, ok := strings.Cut(rest[1:], "]")
			if !ok {
				continue
			}
			opts, rest = keptOptions(strings.Fields(inside)), after
		}
		if f := strings.Fields(rest); len(f) >= 3 {
			all = appendSource(all, Source{URI: f[0], Suite: f[1], Components: f[2:], Options: opts})
		}
	}
	return all
}

// keptOptions are the options that decide whether a source is believed; the others choose what to fetch, which is decided here.
func keptOptions(opts []string) []string {
	var kept []string
	for _, o := range opts {
		key, _, _ := strings.Cut(o, "=")
		switch strings.ToLower(key) {
		case "signed-by", "trusted", "check-valid-until", "check-date", "allow-weak":
			kept = append(kept, o)
		}
	}
	return kept
}

// parseDeb822 reads the stanza form of .sources files.
func parseDeb822(data []byte) []Source {
	var all []Source
	for _, fields := range stanzas(data) {
		if no := strings.ToLower(fields["enabled"]); no == "no" || no == "false" || no == "0" {
			continue
		}
		if !slices.Contains(strings.Fields(fields["types"]), "deb") {
			continue
		}
		var opts []string
		// A key that is written out in the file has no path to name: the distribution's own keyring must do then.
		if by := fields["signed-by"]; by != "" && !strings.Contains(by, "BEGIN PGP") {
			opts = append(opts, "signed-by="+strings.Join(strings.FieldsFunc(by, func(r rune) bool { return r == ' ' || r == ',' || r == '\n' || r == '\t' }), ","))
		}
		for _, key := range []string{"trusted", "check-valid-until", "check-date", "allow-weak"} {
			if v := fields[key]; v != "" {
				opts = append(opts, key+"="+v)
			}
		}
		for _, uri := range strings.Fields(fields["uris"]) {
			for _, suite := range strings.Fields(fields["suites"]) {
				all = appendSource(all, Source{URI: uri, Suite: suite, Components: strings.Fields(fields["components"]), Options: opts})
			}
		}
	}
	return all
}

// stanzas splits deb822 text into fields by lower-case name; the lines of a value are joined by newlines.
func stanzas(data []byte) []map[string]string {
	var all []map[string]string
	var cur map[string]string
	last := ""
	for line := range bytes.Lines(data) {
		text := strings.TrimRight(string(line), " \t\r\n")
		switch {
		case text == "":
			cur, last = nil, ""
		case text[0] == '#':
		case text[0] == ' ' || text[0] == '\t':
			if cur != nil && last != "" {
				cur[last] += "\n" + strings.TrimSpace(text)
			}
		default:
			key, value, ok := strings.Cut(text, ":")
			if !ok {
				continue
			}
			if cur == nil {
				cur = map[string]string{}
				all = append(all, cur)
			}
			last = strings.ToLower(strings.TrimSpace(key))
			cur[last] = strings.TrimSpace(value)
		}
	}
	return all
}

// appendSource adds a source unless it is a disc or a flat folder, which cannot bootstrap anything.
func appendSource(all []Source, s Source) []Source {
	if strings.HasPrefix(s.URI, "cdrom:") || strings.HasSuffix(s.Suite, "/") || !strings.Contains(s.URI, ":") || len(s.Components) == 0 {
		return all
	}
	return append(all, s)
}

// firstMirror replaces a list of mirrors in a file of the host, which does not exist inside the image, by the first of them.
func firstMirror(root fs.FS, uri string) string {
	for _, scheme := range []string{"mirror+file:", "mirror:file:"} {
		name, ok := strings.CutPrefix(uri, scheme)
		if !ok {
			continue
		}
		data, err := fs.ReadFile(root, strings.TrimLeft(name, "/"))
		if err != nil {
			return uri
		}
		for line := range bytes.Lines(data) {
			if f := strings.Fields(string(line)); len(f) > 0 && !strings.HasPrefix(f[0], "#") {
				return f[0]
			}
		}
	}
	return uri
}

// selectSources keeps, of a host's sources, the distribution's own for one release: the release itself, its updates and its security fixes,
// each with the components that the recipe's packages are in. None for the release itself is INVALID_CONFIG.
func selectSources(all []Source, distribution, suite string) ([]Source, error) {
	components := []string{"main"}
	if distribution == "ubuntu" {
		components = append(components, "universe")
	}
	// A host that follows a moving name (stable, sid) has no source under the name of its release.
	for _, name := range []string{suite, "stable", "testing", "unstable", "sid"} {
		var kept []Source
		complete := false
		for _, s := range all {
			if !ownSource(s, distribution) {
				continue
			}
			switch s.Suite {
			case name, name + "-updates", name + "-security", name + "/updates":
			default:
				continue
			}
			var have []string
			for _, c := range components {
				if slices.Contains(s.Components, c) {
					have = append(have, c)
				}
			}
			if len(have) == 0 {
				continue
			}
			complete = complete || s.Suite == name
			s.Components = have
			if !slices.ContainsFunc(kept, func(k Source) bool { return k.String() == s.String() }) {
				kept = append(kept, s)
			}
		}
		if complete {
			return kept, nil
		}
	}
	return nil, errs.E(errs.InvalidConfig, "the package sources of this machine have none of %s %s", distribution, suite).
		Suggest("Add the distribution's main source to /etc/apt/sources.list, or name a suite that is configured there.")
}

// ownSource reports whether a source is the distribution's and not someone else's for it: it is signed by the distribution's keyring, or
// names no key and has the layout of the distribution's mirrors.
func ownSource(s Source, distribution string) bool {
	for _, o := range s.Options {
		key, value, _ := strings.Cut(o, "=")
		if strings.EqualFold(key, "signed-by") {
			return slices.ContainsFunc(strings.Split(value, ","), func(p string) bool {
				return strings.HasPrefix(path.Base(p), distribution+"-archive-")
			})
		}
	}
	_, rest, ok := strings.Cut(s.URI, "://")
	if !ok {
		_, rest, _ = strings.Cut(s.URI, ":")
	}
	for part := range strings.SplitSeq(rest, "/") {
		if part == distribution || part == distribution+"-security" || part == distribution+"-ports" {
			return true
		}
	}
	// The old form of the security archive: a host of its own, no folder.
	return s.Suite != "" && strings.HasSuffix(s.Suite, "/updates")
}
