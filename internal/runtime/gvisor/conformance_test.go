package gvisor

import (
	"testing"

	"github.com/berthrun/berth/internal/runtime/runtimetest"
)

func TestConformance(t *testing.T) {
	r := newRig(t)
	runtimetest.Run(t, runtimetest.Harness{Driver: r.Driver, Image: tiny, Kill: r.kill})
}
