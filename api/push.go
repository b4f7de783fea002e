package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// The states of a push.
const (
	PushPushing = "pushing"
	PushDone    = "done"
	PushFailed  = "failed"
)

// ImagePush is one push of an image to a registry.
type ImagePush struct {
	Reference string         `json:"reference" doc:"With the registry and the tag."`
	Digest    string         `json:"digest" doc:"That the tag means there once it is done."`
	State     string         `json:"state" doc:"pushing, done or failed."`
	Progress  *ImageProgress `json:"progress,omitempty" doc:"While it is pushing."`
	SizeMiB   float64        `json:"sizeMiB" doc:"Of all of it; what is there already is not sent."`
	Error     string         `json:"error,omitempty" doc:"Why it failed."`
	Reason    string         `json:"reason,omitempty" doc:"The same in a word."`
	BegunAt   time.Time      `json:"begunAt"`
	EndedAt   *time.Time     `json:"endedAt,omitempty"`
}

// PushImageIn is the input of images.push.
type PushImageIn struct {
	op.WriteIn
	op.WaitIn
	ImageIn
	Reference string `json:"reference" minlen:"1" maxlen:"512" doc:"Such as ghcr.io/owner/name:1. registries.set keeps the credentials."`
}

// PushImageOut is the output of images.push. Push is there when status is done.
type PushImageOut struct {
	op.WriteOut
	ImageIn
	Status string     `json:"status" doc:"done: the call was carried out. The registry has the image once the push's state is done; images.get shows it."`
	Push   *ImagePush `json:"push,omitempty"`
}

// PushImage puts an image into a registry.
var PushImage = op.Def[PushImageIn, PushImageOut]{
	Name: "images.push", Route: "POST /v1/images/{imageId}/push", Action: "compute:images:push", Tool: "manage_images", Verb: "push",
	Hints: op.Write | op.Idempotent | op.OpenWorld, Toolset: SetTemplates, Title: "Push an image",
	Doc: "Puts an image into a registry under a name and tag, as it came here.",
}
