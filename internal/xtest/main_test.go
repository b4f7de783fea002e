package xtest

import (
	"testing"

	"github.com/berthrun/berth/internal/db/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }
