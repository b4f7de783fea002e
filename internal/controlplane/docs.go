package controlplane

import (
	"net/http"

	"github.com/berthrun/berth/api/op"
	pages "github.com/berthrun/berth/docs"
	"github.com/berthrun/berth/internal/docs"
	"github.com/berthrun/berth/internal/docsapi"
	"github.com/berthrun/berth/internal/mcpapi"
)

// documentation reads the pages that the program carries and binds their operations.
func (p *Plane) documentation() (err error) {
	if p.docs, err = docs.New(pages.Files()); err != nil {
		return err
	}
	p.docs.Register(p.registry)
	return nil
}

// serveDocs mounts the pages, and the MCP endpoint that has them and needs no sign-in.
func (p *Plane) serveDocs(mux *http.ServeMux, source func(*http.Request) string) error {
	cfg := p.cfg
	all := docsapi.New(docsapi.Config{Library: p.docs, PublicURL: cfg.PublicURL, SourceIP: source, Now: cfg.Now})
	mux.Handle(docsapi.Base, all)
	mux.Handle(docsapi.Base+"/", all)

	own := op.NewRegistry()
	p.docs.Register(own)
	public := docsapi.NewPublic(source, cfg.Now)
	mcp, err := mcpapi.New(mcpapi.Config{
		Registry: own, Path: public, Visible: public.Visible, Anonymous: public.Anonymous, Base: docsapi.Base + "/mcp", Name: "berth-docs",
		Instructions: docsapi.Instructions, PublicURL: cfg.PublicURL, Version: cfg.Version, Logger: cfg.Logger, SourceIP: source,
	})
	if err != nil {
		return err
	}
	for _, route := range mcp.Routes() {
		mux.Handle(route, mcp)
	}
	return nil
}
