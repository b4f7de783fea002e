// Package template owns templates of sandboxes: their rows, tags and defaults, the builds that they consist of, the layers that builds leave behind and find
// again, and the operations on them.
//
// What is to be built is read by internal/template/recipe. Sandboxes, the one that a build runs in too, are internal/sandbox's, which asks this package what a
// template is.
package template

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/secret"
)

// Sandbox is one that a template is built in.
type Sandbox struct {
	ID, BuildID        string
	OrgID, WorkspaceID string
	By                 op.CreatedBy
	PrincipalID        string
	Image, ImageID     string
	Layer              string // whose disk it begins with; empty: the image's
	Resources          runtime.Resources
	Internet           bool
	For                time.Duration // after which it is deleted, whoever still wants it
}

// Sandboxes makes the sandboxes that builds run in.
type Sandboxes interface {
	Make(ctx context.Context, s Sandbox) error
	// Await waits until one runs, and gives its guest and the guest's token.
	Await(ctx context.Context, id string) (*guest.Client, string, error)
	// Save has the node keep one as it is now, under the id of a layer.
	Save(ctx context.Context, id, layer string, memory bool) (runtime.Save, error)
	// Explain gives the error of a call on a guest a better one where its sandbox died under it.
	Explain(ctx context.Context, id string, err error) error
	End(ctx context.Context, id string) error
	// All gives those there are, and the build of each.
	All(ctx context.Context) (map[string]string, error)
	// MadeOf counts the sandboxes that are being made of a layer.
	MadeOf(ctx context.Context, tx op.Tx, layer string) (int, error)
}

// Image is an image that a build begins with.
type Image struct {
	ID, Digest string
	Env        []string
	WorkingDir string
	User       string
}

// Images gives what builds begin with.
type Images interface {
	// Prepared gives the id of an image that the node has by name, such as base; empty where it has none such.
	Prepared(ctx context.Context, name string) (string, error)
	// CheckReference refuses what is neither an image's id nor a reference.
	CheckReference(ref string) error
	// Pull waits until the image that a reference means now is on the node.
	Pull(ctx context.Context, orgID, workspaceID string, by op.CreatedBy, ref string) (Image, error)
}

// Users are what templates may not be taken away from.
type Users interface {
	// UsingBuilds gives the ids of sandboxes and snapshots of one of these builds, at most a few.
	UsingBuilds(ctx context.Context, tx op.Tx, builds []string) ([]string, error)
}

// Node holds the saves that layers are. It is a part of runtime.Driver.
type Node interface {
	Capabilities() runtime.Capabilities
	Saves(ctx context.Context) ([]runtime.Save, error)
	Forget(ctx context.Context, name string) error
}

// Storage keeps layers off their node. Every method may be repeated.
type Storage interface {
	Keep(ctx context.Context, orgID, layer string) error
	// Fetch brings one to the node where it is not there yet.
	Fetch(ctx context.Context, orgID, layer string) error
	Drop(ctx context.Context, orgID, layer string) error
}

// Blobs keeps the archives that COPY takes files from.
type Blobs interface {
	Put(ctx context.Context, key string, r io.Reader) error
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	Delete(ctx context.Context, key string) error
}

// Events records what happened to a template in the transaction in which it happened.
type Events interface {
	Append(ctx context.Context, tx op.Tx, org, workspace, kind, resource string, data map[string]any) error
}

// Config is what the service is made of.
type Config struct {
	DB        *db.DB
	Sandboxes Sandboxes
	Images    Images
	Users     Users
	Node      Node
	Storage   Storage // nil: layers stay on their node
	Blobs     Blobs
	Box       *secret.Box
	Events    Events
	Defaults  runtime.Resources // of a build that asks for none
	Folder    string            // for what is only there while a build goes on; the system's where empty
	AtOnce    int               // builds that this server works on at the same time; 2 where 0
	BuildTime time.Duration     // of one build; an hour where 0
	CacheTime time.Duration     // how long a layer is kept that no template needs; a week where 0
	LogBytes  int64             // that are kept of one build's log; 8 MiB where 0
	Tick      time.Duration     // how often all are looked at; a second where 0
	Now       func() time.Time
	Logger    *slog.Logger
}

// Service owns the templates of a deployment.
type Service struct {
	Config
	store   store
	server  string // this one, among those that share the database
	turns   *turns
	mu      sync.Mutex
	working map[string]bool      // builds and layers, and whether one was nudged while it was worked on
	rests   map[string]time.Time // until when what failed is not tried again
	wg      sync.WaitGroup
	ctx     context.Context // of Run: workers end with it
}

// New makes the service. Run carries its builds on.
func New(c Config) *Service {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.AtOnce == 0 {
		c.AtOnce = 2
	}
	if c.BuildTime == 0 {
		c.BuildTime = time.Hour
	}
	if c.CacheTime == 0 {
		c.CacheTime = 7 * 24 * time.Hour
	}
	if c.LogBytes == 0 {
		c.LogBytes = 8 << 20
	}
	if c.Tick == 0 {
		c.Tick = time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Service{
		Config: c, server: guest.NewToken(), turns: newTurns(c.AtOnce), working: map[string]bool{}, rests: map[string]time.Time{},
	}
}

// Register binds the operations on templates and builds.
func (s *Service) Register(r *op.Registry) {
	s.registerTemplates(r)
	s.registerBuilds(r)
	s.registerStreams(r)
}

func topic(build string) string { return "build/" + build }

func layerTopic(org string) string { return "layers/" + org }

// builtIn is the name of the template that comes with every deployment.
const builtIn = "base"

// latest is the tag of what a template's name alone means.
const latest = "latest"

func timeOf(us int64) *time.Time {
	if us == 0 {
		return nil
	}
	t := db.Time(us)
	return &t
}

func ended(status string) bool { return status == api.BuildReady || status == api.BuildError }
