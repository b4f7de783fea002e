package op

import (
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// TestNUL holds that a name never has NUL, which PostgreSQL stores in no text, and that content may.
func TestNUL(t *testing.T) {
	s := SchemaOf[struct {
		Name   string            `json:"name,omitempty" maxlen:"100" doc:"A name."`
		Path   string            `json:"path,omitempty" maxlen:"4096" doc:"A path."`
		Free   string            `json:"free,omitempty" doc:"Without a bound."`
		Labels map[string]string `json:"labels,omitempty" doc:"Labels."`
		Data   string            `json:"data,omitempty" maxlen:"1048576" doc:"Content."`
	}](Closed)
	for raw, path := range map[string]string{
		`{"name":"a\u0000b"}`: "name", `{"path":"\u0000"}`: "path", `{"free":"\u0000"}`: "free", `{"labels":{"a":"\u0000"}}`: "labels.a", `{"data":"a\u0000b"}`: "",
	} {
		err := Check(s, []byte(raw))
		if path == "" {
			if err != nil {
				t.Errorf("%s: %v", raw, err)
			}
			continue
		}
		if e := errs.From(err); e == nil || e.Code != errs.InvalidInput || e.Details["path"] != path {
			t.Errorf("%s: got %v, want a problem with %s", raw, err, path)
		}
	}
}
