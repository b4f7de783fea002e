package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// The states of an image.
const (
	ImagePulling  = "pulling"
	ImageReady    = "ready"
	ImageFailed   = "failed"
	ImageDeleting = "deleting"
	ImageDeleted  = "deleted"
)

// Image is one version of an image: what it holds never changes.
type Image struct {
	ID          string         `json:"id" doc:"img_ and 20 characters."`
	Name        string         `json:"name" doc:"With its registry, such as docker.io/library/debian."`
	Tags        []string       `json:"tags" doc:"That mean this version now."`
	Digest      string         `json:"digest" doc:"Of its manifest."`
	State       string         `json:"state" doc:"pulling, ready, failed or deleting."`
	Error       string         `json:"error,omitempty" doc:"Why it failed."`
	Reason      string         `json:"reason,omitempty" doc:"The same in a word."`
	Progress    *ImageProgress `json:"progress,omitempty" doc:"Of a pull under way."`
	Source      string         `json:"source" doc:"registry or import."`
	SizeMiB     float64        `json:"sizeMiB" doc:"As in the registry."`
	UnpackedMiB float64        `json:"unpackedMiB"`
	Layers      int            `json:"layers"`
	Config      *ImageConfig   `json:"config,omitempty" doc:"Of a ready one."`
	BuiltAt     *time.Time     `json:"builtAt,omitempty"`
	CreatedAt   time.Time      `json:"createdAt" doc:"When it came here."`
	CreatedBy   op.CreatedBy   `json:"createdBy"`
	Pushes      []ImagePush    `json:"pushes,omitempty" doc:"By images.get: the last to each reference, newest first."`
}

// ImageProgress says how far a pull or a push is.
type ImageProgress struct {
	Phase   string `json:"phase" doc:"pulling, unpacking or pushing."`
	Percent int    `json:"percent"`
}

// ImageConfig is what an image says about running it.
type ImageConfig struct {
	Env          []string          `json:"env" doc:"Variables that sandboxes of it begin with."`
	WorkingDir   string            `json:"workingDir,omitempty" doc:"Where commands run."`
	User         string            `json:"user,omitempty" doc:"As whom; root where none is named."`
	Entrypoint   []string          `json:"entrypoint" doc:"Never run by itself."`
	Cmd          []string          `json:"cmd"`
	ExposedPorts []string          `json:"exposedPorts"`
	Labels       map[string]string `json:"labels"`
}

// ImageIn names one image.
type ImageIn struct {
	ImageID string `json:"imageId" id:"img"`
}

// ListImagesIn is the input of images.list.
type ListImagesIn struct {
	op.PageIn
	Name string `json:"name,omitempty" maxlen:"512" doc:"Only versions of this one."`
}

// ListImagesOut is the output of images.list.
type ListImagesOut struct {
	op.PageOut
	Items []Image `json:"items"`
}

// GetImageOut is the output of images.get.
type GetImageOut struct {
	Image Image `json:"image"`
}

// PullImageIn is the input of images.pull.
type PullImageIn struct {
	op.WriteIn
	op.WaitIn
	Image string `json:"image" minlen:"1" maxlen:"512" doc:"Such as debian:12 or ghcr.io/owner/name@sha256:…"`
}

// ImageOut is the output of writes that make or change one image. Image is there when status is done.
type ImageOut struct {
	op.WriteOut
	Status string `json:"status" doc:"done: the call was carried out. The image is there once its state is ready."`
	Image  *Image `json:"image,omitempty"`
}

// TagImageIn is the input of images.tag.
type TagImageIn struct {
	op.WriteIn
	ImageIn
	Tag  string `json:"tag" pattern:"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$"`
	Name string `json:"name,omitempty" minlen:"1" maxlen:"400" doc:"The image's own where absent."`
}

// DeleteImageIn is the input of images.delete.
type DeleteImageIn struct {
	op.WriteIn
	ImageIn
}

// DeleteImageOut is the output of images.delete.
type DeleteImageOut struct {
	op.WriteOut
	ImageID string `json:"imageId"`
	Deleted bool   `json:"deleted" doc:"False: it is still going away and needs no further call."`
}

// RegistryCredentials are what a registry is signed in to with, without the secret.
type RegistryCredentials struct {
	Host      string       `json:"host"`
	Username  string       `json:"username,omitempty" doc:"Empty where a token is sent."`
	CreatedAt time.Time    `json:"createdAt"`
	UpdatedAt time.Time    `json:"updatedAt"`
	CreatedBy op.CreatedBy `json:"createdBy"`
}

// SetRegistryIn is the input of registries.set.
type SetRegistryIn struct {
	op.WriteIn
	Host     string `json:"host" minlen:"1" maxlen:"253" doc:"As in references, such as ghcr.io."`
	Username string `json:"username,omitempty" maxlen:"256"`
	Password string `json:"password,omitempty" secret:"true" maxlen:"8192" doc:"With username. It is never shown again."`
	Token    string `json:"token,omitempty" secret:"true" maxlen:"8192" doc:"A bearer token, instead of username and password."`
}

// RegistryOut is the output of registries.set.
type RegistryOut struct {
	op.WriteOut
	Status   string               `json:"status" doc:"done: the call was carried out."`
	Registry *RegistryCredentials `json:"registry,omitempty"`
}

// ListRegistriesIn is the input of registries.list.
type ListRegistriesIn struct {
	op.PageIn
}

// ListRegistriesOut is the output of registries.list.
type ListRegistriesOut struct {
	op.PageOut
	Items []RegistryCredentials `json:"items"`
}

// DeleteRegistryIn is the input of registries.delete.
type DeleteRegistryIn struct {
	op.WriteIn
	Host string `json:"host" minlen:"1" maxlen:"253"`
}

// DeleteRegistryOut is the output of registries.delete.
type DeleteRegistryOut struct {
	op.WriteOut
	Host    string `json:"host"`
	Deleted bool   `json:"deleted" doc:"False: there were none."`
}

// The operations on images and registries.
var (
	ListImages = op.Def[ListImagesIn, ListImagesOut]{
		Name: "images.list", Route: "GET /v1/images", Action: "compute:images:read", Tool: "manage_images", Verb: "list",
		Hints: op.Read | op.Idempotent, Toolset: SetTemplates, Title: "List images",
		Doc: "Lists the organization's images, newest first.",
	}
	GetImage = op.Def[ImageIn, GetImageOut]{
		Name: "images.get", Route: "GET /v1/images/{imageId}", Action: "compute:images:read", Tool: "manage_images", Verb: "get",
		Hints: op.Read | op.Idempotent, Toolset: SetTemplates, Title: "Read an image",
		Doc: "Gives one image with its configuration, or how far its pull is.",
	}
	PullImage = op.Def[PullImageIn, ImageOut]{
		Name: "images.pull", Route: "POST /v1/images", Action: "compute:images:create", Tool: "manage_images", Verb: "pull",
		Hints: op.Write | op.Idempotent | op.Creates | op.OpenWorld, Toolset: SetTemplates, Title: "Pull an image", Status: 201,
		Doc: "Brings an image of a registry here, so that sandboxes of it start at once.",
	}
	TagImage = op.Def[TagImageIn, ImageOut]{
		Name: "images.tag", Route: "PUT /v1/images/{imageId}/tags/{tag}", Action: "compute:images:update", Tool: "manage_images", Verb: "tag",
		Hints: op.Write | op.Idempotent, Toolset: SetTemplates, Title: "Tag an image",
		Doc: "Makes a tag mean this version. The registry is not asked for it any more.",
	}
	DeleteImage = op.Def[DeleteImageIn, DeleteImageOut]{
		Name: "images.delete", Route: "DELETE /v1/images/{imageId}", Action: "compute:images:delete", Tool: "manage_images", Verb: "delete",
		Hints: op.Write | op.Idempotent | op.Destructive, Toolset: SetTemplates, Title: "Delete an image",
		Doc: "Deletes an image that no sandbox uses. Deleting it again succeeds.",
	}
	SetRegistry = op.Def[SetRegistryIn, RegistryOut]{
		Name: "registries.set", Route: "PUT /v1/registries", Action: "compute:registries:update", Tool: "manage_registries", Verb: "set",
		Hints: op.Write | op.Idempotent, Toolset: SetTemplates, Title: "Set a registry's credentials",
		Doc: "Stores what a registry is signed in to with. It is never shown again.",
	}
	ListRegistries = op.Def[ListRegistriesIn, ListRegistriesOut]{
		Name: "registries.list", Route: "GET /v1/registries", Action: "compute:registries:read", Tool: "manage_registries", Verb: "list",
		Hints: op.Read | op.Idempotent, Toolset: SetTemplates, Title: "List registries",
		Doc: "Lists the registries with credentials, without them.",
	}
	DeleteRegistry = op.Def[DeleteRegistryIn, DeleteRegistryOut]{
		Name: "registries.delete", Route: "DELETE /v1/registries/{host}", Action: "compute:registries:delete", Tool: "manage_registries", Verb: "delete",
		Hints: op.Write | op.Idempotent | op.Destructive, Toolset: SetTemplates, Title: "Delete a registry's credentials",
		Doc: "Forgets a registry's credentials.",
	}
)
