package api

import "github.com/berthrun/berth/api/op"

// SwitchImageIn is the input of sandboxes.switchImage.
type SwitchImageIn struct {
	op.WriteIn
	op.WaitIn
	SandboxIn
	Image    string `json:"image,omitempty" minlen:"1" maxlen:"512" doc:"An image of a registry such as debian:12, or an imageId."`
	Template string `json:"template,omitempty" pattern:"^[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}$" doc:"Instead of image: a template's name or id."`
}

// SwitchSandboxImage moves a sandbox to another image.
var SwitchSandboxImage = op.Def[SwitchImageIn, SandboxOut]{
	Name: "sandboxes.switchImage", Route: "POST /v1/sandboxes/{sandboxId}/switchImage", Action: "compute:sandboxes:switchImage", Tool: "switch_sandbox_image",
	Hints: op.Write | op.Idempotent | op.Destructive | op.OpenWorld, Toolset: SetTemplates, Title: "Switch a sandbox's image",
	Doc: "Moves a running or stopped sandbox to another image or template. Keeps /workspace; everything else on its disk goes. A running one is stopped and started again.",
}
