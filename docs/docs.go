// Package docs holds the pages for users, as the program carries them: what stands in this folder and the generated reference, without the
// decisions, plans and lists that are for those who build Berth. It reads and serves nothing itself.
package docs

import (
	"embed"
	"io/fs"
)

//go:embed *.md reference/*.md
var files embed.FS

// Files are the pages, Markdown by its path, such as README.md and reference/sandboxes.md.
func Files() fs.FS { return files }
