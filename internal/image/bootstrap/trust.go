package bootstrap

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"os"

	"github.com/berthrun/berth/internal/errs"
)

const (
	caBundle = "etc/ssl/certs/ca-certificates.crt"
	caFolder = "usr/local/share/ca-certificates"
)

// trust adds the certificates that the host's file has and the image's bundle lacks, one file each as update-ca-certificates wants it, and
// tells programs with a bundle of their own to use the system's.
func trust(ctx context.Context, opts Options, rootfs string, root *os.Root) error {
	theirs, err := os.ReadFile(opts.TrustHostCA)
	if err != nil {
		return errs.Wrap(errs.InvalidConfig, err, "the certificates to trust cannot be read from %s", opts.TrustHostCA)
	}
	have, err := root.ReadFile(caBundle)
	if err != nil {
		return fmt.Errorf("read certificates of image: %w", err)
	}
	extra := missingCertificates(theirs, have)
	if len(extra) > 0 {
		for _, block := range extra {
			sum := sha256.Sum256(block.Bytes)
			f := imageFile{name: fmt.Sprintf("%s/host-%x.crt", caFolder, sum[:8]), text: string(pem.EncodeToMemory(block))}
			if err := f.write(root); err != nil {
				return fmt.Errorf("write certificate into image: %w", err)
			}
		}
		if err := inside(ctx, rootfs, 0, "/root", "update-ca-certificates", opts.log()).Run(); err != nil {
			return fmt.Errorf("update certificates of image: %w", err)
		}
	}
	env, err := root.ReadFile("etc/environment")
	if err != nil {
		return fmt.Errorf("read environment of image: %w", err)
	}
	text := string(env)
	for _, name := range []string{"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"} {
		text += fmt.Sprintf("%s=\"/%s\"\n", name, caBundle)
	}
	if err := (imageFile{name: "etc/environment", text: text}).write(root); err != nil {
		return fmt.Errorf("write environment of image: %w", err)
	}
	return nil
}

// missingCertificates are the certificates of a PEM file that another lacks, each once, in their order, without headers.
func missingCertificates(want, have []byte) []*pem.Block {
	known := map[[sha256.Size]byte]bool{}
	for _, b := range certificates(have) {
		known[sha256.Sum256(b.Bytes)] = true
	}
	var missing []*pem.Block
	for _, b := range certificates(want) {
		if sum := sha256.Sum256(b.Bytes); !known[sum] {
			known[sum] = true
			missing = append(missing, &pem.Block{Type: b.Type, Bytes: b.Bytes})
		}
	}
	return missing
}

// certificates are the certificates of a PEM file; anything else in it is passed over.
func certificates(data []byte) []*pem.Block {
	var all []*pem.Block
	for data = bytes.TrimSpace(data); ; {
		var b *pem.Block
		if b, data = pem.Decode(data); b == nil {
			return all
		}
		if b.Type == "CERTIFICATE" {
			all = append(all, b)
		}
	}
}
