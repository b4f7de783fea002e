package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

const (
	someVolume = "vol_aaaaaaaaaaaaaaaaaaaa"
	someBackup = "bak_aaaaaaaaaaaaaaaaaaaa"
)

// TestCarriedCopies: backups and restores say how far they are until they have ended, and why where they came to nothing.
func TestCarriedCopies(t *testing.T) {
	for _, tt := range []struct {
		operation, member, id, path string
	}{
		{api.CreateBackup.Name, "backup", someBackup, "/v1/backups/" + someBackup},
		{api.CreateVolume.Name, "volume", someVolume, "/v1/volumes/" + someVolume},
	} {
		t.Run(tt.operation, func(t *testing.T) {
			states := []string{
				fmt.Sprintf(`{%q:{"id":%q,"state":"creating","progress":{"doneMiB":512,"totalMiB":1024,"percent":50}}}`, tt.member, tt.id),
				fmt.Sprintf(`{%q:{"id":%q,"state":"ready"}}`, tt.member, tt.id),
				fmt.Sprintf(`{%q:{"id":%q,"state":"failed","error":"the disk is full","reason":"disk_full"}}`, tt.member, tt.id),
			}
			asked := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != tt.path {
					http.NotFound(w, r)
					return
				}
				fmt.Fprint(w, states[asked])
				asked++
			}))
			defer s.Close()
			conn, err := client.New(s.URL, "berth_key_test")
			if err != nil {
				t.Fatal(err)
			}
			look, err := carried[tt.operation](t.Context(), conn, json.RawMessage(states[0]))
			if err != nil || look == nil {
				t.Fatalf("not watched: %v", err)
			}
			var got []string
			for range states {
				st, err := look(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				line := fmt.Sprintf("%d of %d, %v", st.done/mebi, st.total/mebi, st.ended)
				if st.failed != nil {
					line += ", " + st.failed.Reason
					if !strings.Contains(st.failed.Message, "the disk is full") {
						t.Errorf("it says %q", st.failed.Message)
					}
				}
				got = append(got, line)
			}
			if d := cmp.Diff([]string{"512 of 1024, false", "0 of 0, true", "0 of 0, true, disk_full"}, got); d != "" {
				t.Errorf("stages (-want +got):\n%s", d)
			}
		})
	}
}
