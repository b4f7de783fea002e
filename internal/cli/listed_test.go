package cli_test

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
)

// What the server of these tests has of things that are not sandboxes.
const (
	snapshotID = "snap_aaaaaaaaaaaaaaaaaaaa"
	imageID    = "img_aaaaaaaaaaaaaaaaaaaa"
)

// longLine is longer than a cell of a table.
const longLine = "a line of a program that says in many words what it has just done and at its end: why"

func bindListed(r *op.Registry) {
	bind(r, api.ListSnapshots, func(_ context.Context, in *api.ListSnapshotsIn) (*api.ListSnapshotsOut, error) {
		if in.Name != "before" {
			return &api.ListSnapshotsOut{Items: []api.Snapshot{}}, nil
		}
		return &api.ListSnapshotsOut{Items: []api.Snapshot{{ID: snapshotID, Name: "before"}}}, nil
	})
	bind(r, api.GetSnapshot, func(_ context.Context, in *api.SnapshotIn) (*api.GetSnapshotOut, error) {
		return &api.GetSnapshotOut{Snapshot: api.Snapshot{ID: in.SnapshotID, Name: "before", DiskMiB: 1.5}}, nil
	})
	bind(r, api.ListImages, func(context.Context, *api.ListImagesIn) (*api.ListImagesOut, error) {
		return &api.ListImagesOut{Items: []api.Image{{ID: imageID, Name: "docker.io/library/app", Tags: []string{"1"}, State: api.ImageReady}}}, nil
	})
	var looked atomic.Int64
	bind(r, api.GetImage, func(_ context.Context, in *api.ImageIn) (*api.GetImageOut, error) {
		push := api.ImagePush{Reference: "r.test/app:1", State: api.PushPushing, Progress: &api.ImageProgress{Phase: "pushing", Percent: 50}, SizeMiB: 2}
		if looked.Add(1)%3 == 0 {
			push.State, push.Progress = api.PushDone, nil
		}
		broken := api.ImagePush{Reference: "r.test/broken:1", State: api.PushFailed, Error: "the registry refuses it", Reason: "registry_denied"}
		return &api.GetImageOut{Image: api.Image{ID: in.ImageID, Pushes: []api.ImagePush{push, broken}}}, nil
	})
	bind(r, api.PushImage, func(_ context.Context, in *api.PushImageIn) (*api.PushImageOut, error) {
		return &api.PushImageOut{ImageIn: in.ImageIn, Status: "done", Push: &api.ImagePush{Reference: in.Reference, State: api.PushPushing}}, nil
	})
	bind(r, api.PullImage, func(_ context.Context, in *api.PullImageIn) (*api.ImageOut, error) {
		return &api.ImageOut{Image: &api.Image{ID: imageID, Name: in.Image}}, nil
	})
	bind(r, api.SandboxMetrics, func(context.Context, *api.SandboxMetricsIn) (*api.SandboxMetricsOut, error) {
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		points := []api.MetricsPoint{{At: at, CPUPercent: 1.25, MemoryUsedMiB: 10}, {At: at.Add(time.Minute), CPUPercent: 2.5, MemoryUsedMiB: 11}}
		return &api.SandboxMetricsOut{Start: at, End: at, StepSeconds: 60, Points: points}, nil
	})
	bind(r, api.ListPools, func(context.Context, *api.ListPoolsIn) (*api.ListPoolsOut, error) {
		ready := []api.ReadyKind{{Image: "base", VCPU: 1, MemoryMiB: 2048, Ready: 1}, {Image: "base", VCPU: 0.5, MemoryMiB: 1024}}
		return &api.ListPoolsOut{Items: []api.Pool{{ID: "local", Driver: "gvisor", MemoryMiB: 4096, Ready: ready}}}, nil
	})
	bind(r, api.SandboxLogs, func(context.Context, *api.SandboxLogsIn) (*api.SandboxLogsOut, error) {
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		return &api.SandboxLogsOut{Items: []api.LogLine{{At: at, Level: "info", Source: "process", Message: longLine}}}, nil
	})
}
