package errs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestCodeSurvivesWrapping(t *testing.T) {
	err := fmt.Errorf("start sandbox: %w", E(NoCapacity, "no node has room"))
	if got := CodeOf(err); got != NoCapacity {
		t.Errorf("CodeOf = %s, want %s", got, NoCapacity)
	}
	if got := From(err).Message; got != "no node has room" {
		t.Errorf("message = %q", got)
	}
}

func TestFromHidesTheInside(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		code Code
	}{
		"plain":    {errors.New("open /secret: denied"), Internal},
		"deadline": {fmt.Errorf("dial 10.0.0.1: %w", context.DeadlineExceeded), Timeout},
	} {
		t.Run(name, func(t *testing.T) {
			e := From(tt.err)
			if e.Code != tt.code || strings.Contains(e.Message, "secret") || strings.Contains(e.Message, "10.0") {
				t.Errorf("From = %+v", e)
			}
		})
	}
}

func TestEveryCodeHasAStatus(t *testing.T) {
	for _, c := range Codes() {
		if s := c.Status(); s < 400 || s > 599 {
			t.Errorf("%s has status %d", c, s)
		}
	}
}
