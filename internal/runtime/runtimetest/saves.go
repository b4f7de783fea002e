package runtimetest

import (
	"testing"
)

// saves proves Save, Clone, Saves and Forget.
func (s *suite) saves(t *testing.T) {
}
