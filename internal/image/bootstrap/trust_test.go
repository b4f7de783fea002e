package bootstrap

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
)

// authority makes the certificate of a certificate authority, in PEM.
func authority(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestTrust(t *testing.T) {
	merged := writable(t, baseImage(t).Rootfs)
	root, err := os.OpenRoot(merged)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	before, err := root.ReadFile(caBundle)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "host.pem")
	if err := os.WriteFile(file, append(before, authority(t)...), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	if err := trust(t.Context(), Options{TrustHostCA: file, Log: &log}, merged, root); err != nil {
		t.Fatalf("trust: %v\n%s", err, log.Bytes())
	}
	c := check{"certificates", `
		test "$(ls /usr/local/share/ca-certificates | wc -l)" = 1
		python3 -c 'import ssl; c = ssl.create_default_context(); c.load_verify_locations("/etc/ssl/certs/ca-certificates.crt")
assert any(("commonName", "test authority") in [p for r in x["subject"] for p in r] for x in c.get_ca_certs())'
		set -a; . /etc/environment; node -e 'require("fs").readFileSync(process.env.NODE_EXTRA_CA_CERTS)'; test -r "$SSL_CERT_FILE"`}
	if err := runCheck(t.Context(), Options{Log: &log}, merged, c); err != nil {
		t.Errorf("%v\n%s", err, log.Bytes())
	}
}

func TestMissingCertificates(t *testing.T) {
	cert := func(kind, body string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(body), Headers: map[string]string{"Note": "x"}}))
	}
	host := "# a comment\n" + cert("CERTIFICATE", "known") + cert("CERTIFICATE", "new") + cert("PRIVATE KEY", "secret") + cert("CERTIFICATE", "new") + cert("CERTIFICATE", "newer")
	var got []string
	for _, b := range missingCertificates([]byte(host), []byte(cert("CERTIFICATE", "known"))) {
		if b.Headers != nil || b.Type != "CERTIFICATE" {
			t.Errorf("block %+v, want a bare certificate", b)
		}
		got = append(got, string(b.Bytes))
	}
	if diff := cmp.Diff([]string{"new", "newer"}, got); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
}

func TestMmdebstrapFailureIsTold(t *testing.T) {
	if err := needRoot(); err != nil {
		t.Skip(err)
	}
	if err := ensureTool(t.Context(), Options{}, os.Stderr); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	lock, err := acquire(t.Context(), filepath.Join(dir, "lock"), func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	rootfs := filepath.Join(dir, "rootfs")
	sources := []Source{{URI: "file:" + dir + "/none", Suite: "nosuch", Components: []string{"main"}, Options: []string{"trusted=yes"}}}
	err = runMmdebstrap(t.Context(), Options{}, mmdebstrapArgs("nosuch", rootfs, []string{"bash"}, nil), sources, lock)
	if !errs.Is(err, errs.Upstream) {
		t.Fatalf("runMmdebstrap: %v, want UPSTREAM_ERROR", err)
	}
	// The message names what failed, which only mmdebstrap's own output knows.
	if e := errs.From(err); !strings.Contains(e.Message, dir+"/none") && !strings.Contains(e.Message, "apt-get update") {
		t.Errorf("message %q does not say what failed", e.Message)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if left := disk.MountsUnder(mounts, dir); len(left) > 0 {
		t.Errorf("mounts left: %v", left)
	}
}
