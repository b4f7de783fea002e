package nodeagent

import (
	"fmt"
	goruntime "runtime"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/image/store"
)

// images are the pulled images of a node.
type images struct {
	store  *store.Store
	client *registry.Client
}

func openImages(c Config) (*images, error) {
	client := registry.New(c.Registries)
	s, err := store.Open(store.Config{Dir: disk.PulledDir(c.Dir), Registry: client, Arch: goruntime.GOARCH, Logger: c.Logger})
	if err != nil {
		client.Close()
		return nil, fmt.Errorf("open images: %w", err)
	}
	return &images{s, client}, nil
}
