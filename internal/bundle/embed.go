//go:build bundle

package bundle

import (
	"embed"
	"io/fs"
)

//go:embed assets/manifest.json assets/berth-runtime.zst assets/berth-guest.zst
var files embed.FS

// assets is the bundle that this program carries.
func assets() fs.FS {
	sub, err := fs.Sub(files, "assets")
	if err != nil {
		panic(err) // "assets" is a valid path: cannot fail
	}
	return sub
}
