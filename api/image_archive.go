package api

import "github.com/berthrun/berth/api/op"

// ImportImageIn is the input of images.import.
type ImportImageIn struct {
	Image  string `json:"image,omitempty" minlen:"1" maxlen:"512" doc:"What it is called here, as name:tag; as in the archive where absent."`
	Select string `json:"select,omitempty" minlen:"1" maxlen:"512" doc:"Which image of an archive of several: its name or digest there."`
}

// ExportImageIn is the input of images.export.
type ExportImageIn struct {
	ImageIn
}

// The streams of images.
var (
	ImportImage = op.StreamDef[ImportImageIn]{
		Name: "images.import", Route: "POST /v1/images/import", Action: "compute:images:create", Kind: op.Upload,
		Hints: op.Write | op.Idempotent, Toolset: SetTemplates, Title: "Import an image", Media: TarType, Out: GetImageOut{},
		Doc: "Takes an image from the request's body: an OCI layout as a tar archive, or what docker save writes. Its tag never asks a registry. Sent again it does the same again.",
	}
	ExportImage = op.StreamDef[ExportImageIn]{
		Name: "images.export", Route: "GET /v1/images/{imageId}/archive", Action: "compute:images:read", Kind: op.Download,
		Hints: op.Read | op.Idempotent, Toolset: SetTemplates, Title: "Export an image", Media: TarType,
		Doc: "Gives the image as a tar archive that is an OCI layout and that docker load takes, with the digests that it has here. It is whole where it ends properly.",
	}
)
