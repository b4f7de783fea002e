package xtest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/runtime/fake"
)

// TestContextKnown: an archive that an organization has sent is found by its hash, by nobody else, and not for ever; one that does not have the hash that was
// said is not kept.
func TestContextKnown(t *testing.T) {
	l := newLifeOn(t, t.TempDir()+"/berth.db", fake.Config{Can: fake.Everything()}, nil)
	secret, err := l.Plane.Found(t.Context(), "another")
	must(t, err)
	foreign := l.With(t, secret)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	must(t, w.WriteHeader(&tar.Header{Name: "notes.txt", Mode: 0o644, Typeflag: tar.TypeReg}), w.Close())
	archive := b.Bytes()
	hash := sha256.Sum256(archive)
	sum := hex.EncodeToString(hash[:])
	known := func(c *client.Client) string {
		t.Helper()
		got, err := c.KnownContext(t.Context(), sum)
		must(t, err)
		if got == nil {
			return ""
		}
		return got.ID
	}

	if got := known(l.Client); got != "" {
		t.Errorf("known before it was sent: %s", got)
	}
	id := send(t, l.Client, archive)
	if got := known(l.Client); got != id {
		t.Errorf("known as %q, sent as %s", got, id)
	}
	if got := known(foreign); got != "" {
		t.Errorf("another organization finds %s", got)
	}
	out, end := build(t, l.Client, api.BuildTemplateIn{Name: "app", FromTemplate: "base", ContextID: known(l.Client), Steps: []api.TemplateStep{{Type: "COPY", Source: "notes.txt", Destination: "/notes"}}})
	if end.Status != api.BuildReady {
		t.Errorf("build: %+v\n%s", end, buildLog(t, l.Client, out.BuildID))
	}
	l.pass(20 * time.Hour)
	if got := known(l.Client); got != id { // which also keeps it
		t.Errorf("after 20 hours known as %q", got)
	}

	resp, err := client.Open(t.Context(), l.Client, api.UploadContext, api.UploadContextIn{SHA256: sum}, http.Header{"Content-Type": {api.TarType}}, bytes.NewReader(append(archive, 0)), int64(len(archive)+1))
	if err == nil {
		_ = resp.Body.Close()
	}
	if e, ok := err.(*client.Error); !ok || e.Code != "INVALID_INPUT" || e.Reason != "checksum" {
		t.Errorf("another content than was said: %v", err)
	}
	var kept int
	if err := l.db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM build_contexts`).Scan(&kept); err != nil || kept != 1 {
		t.Errorf("%d are kept, %v", kept, err)
	}
}
