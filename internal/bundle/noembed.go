//go:build !bundle

package bundle

import "io/fs"

// assets is nil: this program carries no bundle.
func assets() fs.FS { return nil }
