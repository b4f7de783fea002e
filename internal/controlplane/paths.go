package controlplane

import (
	"net/http"
	"path"
	"strings"
)

// straight has a mux serve the paths that are clean, and api all others: it says that nothing is there. The mux itself would redirect, or refuse in words
// of its own.
func straight(mux, api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		clean := path.Clean(r.URL.Path)
		if strings.HasSuffix(r.URL.Path, "/") && clean != "/" {
			clean += "/"
		}
		if r.Method == http.MethodConnect || clean != r.URL.Path {
			api.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}
