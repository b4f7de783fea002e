// Package config owns the configuration of a server: its keys with their types, bounds, defaults and meaning, and how one YAML file, environment
// variables and flags become one Config that says where each value came from.
//
// It opens nothing that a value names and knows no service: the command line hands the values to the assemblies.
package config

//go:generate go run ./gen -o ../../docs/reference/configuration.md

import (
	"github.com/berthrun/berth/internal/errs"
)

// Config is everything a server is told. The field tags are the one place that states a key: json is its name, default its value where nobody gives
// one, min, max and enum what it may be, unit and doc what it means, env and flag their names where they are not made of the key's, secret that it may
// hold a password.
type Config struct {
	Data            string           `json:"data" doc:"The folder of everything Berth keeps. One server a folder." shown:"/var/lib/berth for root, ~/.local/share/berth for others"`
	PublicURL       string           `json:"publicUrl" doc:"The address under which callers reach the server." shown:"where it listens"`
	KeyFile         string           `json:"keyFile" doc:"The file with the key that stored secrets are encrypted under, such as passwords of registries. Made where it is missing. Servers of one database have the same." shown:"secrets.key in the data folder"`
	ReadyFile       string           `json:"readyFile" doc:"A file to write {url, mcpUrl, key} to once the server serves; key only where one was made."`
	ShutdownSeconds int              `json:"shutdownSeconds" default:"10" min:"0" max:"3600" unit:"seconds" doc:"How long calls under way get when the server ends."`
	Listen          Listen           `json:"listen" doc:"Where the server listens, and whom it believes."`
	Database        Database         `json:"database" doc:"Where the state is."`
	Blobs           Blobs            `json:"blobs" doc:"Where large objects are, such as output that was kept."`
	MCP             MCP              `json:"mcp" doc:"The MCP endpoint."`
	Calls           Calls            `json:"calls" doc:"Limits of one caller."`
	Confirmations   Confirmations    `json:"confirmations" doc:"Calls that a person is to approve first."`
	Sandboxes       Sandboxes        `json:"sandboxes" doc:"What a create of a sandbox leaves out."`
	Keep            Keep             `json:"keep" doc:"How long records outlive what they tell of."`
	Limits          map[string]int64 `json:"limits" flag:"limit" min:"-1" keys:"sandboxes.running,sandboxes.total,vcpu.running,memory.running,disk.total,volumes.total,disk.perSandboxMin,disk.perSandboxMax,calls.perMinute" doc:"Quotas of an organization that has none of its own: sandboxes.running, sandboxes.total, vcpu.running (thousandths), memory.running (MiB), disk.total (GiB, volumes too), volumes.total, disk.perSandboxMin and disk.perSandboxMax (GiB), calls.perMinute. -1 is none." shown:"100 running, 1000 in all, 1000 volumes, four times this machine's memory, disks of 10 to 30 GiB"`
	Images          Images           `json:"images" doc:"What sandboxes start from."`
	Node            Node             `json:"node" doc:"This machine as the node that runs sandboxes."`
	Log             Log              `json:"log" doc:"What the server writes to standard error."`
	Metrics         Metrics          `json:"metrics" doc:"Prometheus metrics at /metrics of the debug listener."`
	Debug           Debug            `json:"debug" doc:"The private listener: /metrics, /debug/pprof, /debug/vars, /debug/state."`
}

// Listen is where the server listens.
type Listen struct {
	Address        string   `json:"address" default:"127.0.0.1" flag:"listen" doc:"The address to listen on."`
	Port           int      `json:"port" default:"7070" min:"0" max:"65535" flag:"port" doc:"The port to listen on; 0 takes a free one."`
	TrustedProxies []string `json:"trustedProxies" flag:"trusted-proxy" doc:"Addresses and networks whose X-Forwarded-For is believed."`
}

// Database is where the state is.
type Database struct {
	URL      string `json:"url" flag:"database" secret:"true" doc:"A postgres:// URL, or the file of a SQLite database." shown:"berth.db in the data folder"`
	MaxConns int    `json:"maxConns" default:"16" min:"2" max:"1000" doc:"The most connections to the database at once."`
}

// Blobs is where large objects are.
type Blobs struct {
	URL string `json:"url" secret:"true" doc:"Where large objects are kept: a folder, or the URL of a bucket such as s3://name?region=eu-1." shown:"blobs in the data folder"`
}

// MCP is the MCP endpoint.
type MCP struct {
	Enabled bool     `json:"enabled" default:"true" flag:"mcp" doc:"Whether MCP is served."`
	Path    string   `json:"path" default:"/mcp" doc:"The path of the MCP endpoint, absolute."`
	Origins []string `json:"origins" flag:"mcp-origin" doc:"Origins of web pages that may call MCP, such as https://app.example.com, beside the server's own."`
	Hosts   []string `json:"hosts" flag:"mcp-host" doc:"Host names that MCP answers to on a loopback address, beside loopback's own and the public URL's."`
}

// Calls are the limits of one caller.
type Calls struct {
	PerMinute int `json:"perMinute" default:"600" min:"-1" max:"1000000" doc:"Calls of one caller a minute; -1 is no limit."`
	InFlight  int `json:"inFlight" default:"4" min:"1" max:"1000" doc:"MCP calls of one caller at the same time."`
}

// Confirmations are calls that a person is to approve first.
type Confirmations struct {
	WaitSeconds int `json:"waitSeconds" default:"25" min:"1" max:"60" unit:"seconds" doc:"How long such a call waits for the person before it answers that it waits."`
	LastSeconds int `json:"lastSeconds" default:"600" min:"30" max:"86400" unit:"seconds" doc:"How long the person has, and the caller after them to repeat the call."`
}

// Sandboxes is what a create leaves out.
type Sandboxes struct {
	IdleSeconds    int     `json:"idleSeconds" default:"0" min:"0" max:"86400" unit:"seconds" flag:"idle-seconds" doc:"How long a sandbox may be idle before it is paused, or stopped where the node cannot pause. At least 60; 0 is 300, and 1800 where the node cannot pause."`
	FrozenSeconds  int     `json:"frozenSeconds" default:"30" min:"0" max:"86400" unit:"seconds" doc:"How long a sandbox that paused for being idle stays in memory before that is written to disk. Earlier where memory is short; at once where 0."`
	TTLSeconds     int     `json:"ttlSeconds" default:"86400" min:"60" max:"2592000" unit:"seconds" doc:"How long a sandbox lives where its create does not say."`
	VCPU           float64 `json:"vcpu" default:"1" min:"0.1" max:"64" unit:"cores" doc:"CPU time a second of a sandbox whose create does not say."`
	MemoryMiB      int     `json:"memoryMiB" default:"2048" min:"128" max:"1048576" unit:"MiB" doc:"Memory of a sandbox whose create does not say."`
	DiskGiB        int     `json:"diskGiB" default:"10" min:"1" max:"16384" unit:"GiB" doc:"Disk of a sandbox whose create does not say, where the disk store can limit it."`
	ReadyMemoryMiB int     `json:"readyMemoryMiB" default:"256" min:"0" max:"1048576" unit:"MiB" flag:"ready-memory-mib" doc:"Memory for sandboxes that are booted before anybody asks, so that a create need not wait; how many follows from how many were asked for lately. None where 0."`
}

// Keep is how long records are there. What is older is removed soon after.
type Keep struct {
	DeletedSeconds int `json:"deletedSeconds" default:"86400" min:"60" max:"31536000" unit:"seconds" doc:"How long the logs, readings and output of a deleted sandbox can be read. A day."`
	EventSeconds   int `json:"eventSeconds" default:"7776000" min:"60" max:"315360000" unit:"seconds" doc:"How long events are there, which the logs of sandboxes are made of. 90 days."`
	AuditSeconds   int `json:"auditSeconds" default:"34560000" min:"60" max:"315360000" unit:"seconds" doc:"How long the audit log goes back. 400 days."`
}

// Images is what sandboxes start from.
type Images struct {
	Dir                string   `json:"dir" env:"BERTH_BASE_DIR" flag:"images" doc:"The folder of prepared images." shown:"images in the data folder"`
	AllowedRegistries  []string `json:"allowedRegistries" flag:"allow-registry" doc:"Registries that images are pulled from although their addresses are not public, such as registry.corp.example or 10.0.0.5:5000."`
	InsecureRegistries []string `json:"insecureRegistries" flag:"insecure-registry" doc:"Registries that images are pulled from without TLS, at addresses that need not be public."`
}

// Node is this machine as a node.
type Node struct {
	Subnet      string `json:"subnet" flag:"subnet" doc:"The network of sandboxes, such as 10.88.0.0/16." shown:"the first free one"`
	Disk        string `json:"disk" flag:"disk" enum:"btrfs,btrfs-image,plain" doc:"How disks of sandboxes are kept." shown:"the best there is"`
	TrustHostCA string `json:"trustHostCA" flag:"trust-host-ca" doc:"A PEM file of certificates that sandboxes trust too, for hosts behind an intercepting proxy."`
	Runtime     string `json:"runtime" env:"BERTH_RUNTIME_BIN" doc:"The path of berth-runtime." shown:"the one in berth itself"`
	Guest       string `json:"guest" env:"BERTH_GUEST_BIN" doc:"The path of berth-guest." shown:"the one in berth itself"`
}

// Log is what the server writes.
type Log struct {
	Level  string `json:"level" default:"warn" enum:"debug,info,warn,error" doc:"The least that is logged. info has one line a call. SIGHUP reads it again."`
	Format string `json:"format" default:"text" enum:"text,json" doc:"How a line of the log looks."`
}

// Metrics says who may read the metrics.
type Metrics struct {
	Public bool `json:"public" default:"false" doc:"Serve /metrics on the main listener too, to anybody who reaches it, without a key."`
}

// Debug is the private listener.
type Debug struct {
	Listen      string `json:"listen" doc:"The private listener: unix:/path of a socket, or a loopback address with a port such as 127.0.0.1:7071. Off where empty."`
	AllowRemote bool   `json:"allowRemote" default:"false" doc:"Let the private listener have another address than loopback. Whoever reaches it reads the server's memory."`
}

// problem is one thing that is wrong with a configuration.
type problem struct {
	path  string // of the key, may be empty
	where string // such as berth.yaml:4 or BERTH_LISTEN_PORT, may be empty
	text  string
}

func (p problem) String() string {
	s := p.text
	if p.path != "" {
		s = p.path + ": " + s
	}
	if p.where != "" {
		s += " (" + p.where + ")"
	}
	return s
}

// invalid makes one error of problems, nil of none. Its details list all of them.
func invalid(problems []problem) error {
	if len(problems) == 0 {
		return nil
	}
	list := make([]string, len(problems))
	for i, p := range problems {
		list[i] = p.String()
	}
	e := errs.E(errs.InvalidConfig, "%s", joined(list)).With("problems", list).
		Suggest("berth config reference lists every key with what it takes.")
	if problems[0].path != "" {
		e = e.With("path", problems[0].path)
	}
	return e
}

func joined(list []string) string {
	s := list[0]
	for _, more := range list[1:] {
		s += "; " + more
	}
	return s
}
