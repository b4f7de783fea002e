package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/call"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

// writeTimeout is how long an answer may take on its way to a slow reader.
const writeTimeout = 30 * time.Second

// operation is the handler of one operation's route.
func (s *server) operation(o *op.Operation) http.HandlerFunc {
	in := inputOf(o.Info)
	return func(w http.ResponseWriter, r *http.Request) {
		rec := w.(*recorder)
		rec.operation = o.Name
		c, err := s.authenticate(rec, r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		raw, err := in.read(w, r)
		if err != nil {
			s.fail(w, r, s.refused(caller.With(r.Context(), c), o, err))
			return
		}
		result, err := s.Path.Do(caller.With(r.Context(), c), o, raw, call.Options{})
		if err != nil {
			s.fail(w, r, err)
			return
		}
		body, err := encoded(result)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		s.write(w, statusOf(o.Info, body), body)
	}
}

// refuser is a Path that counts and records what is refused before it comes to it.
type refuser interface {
	Refuse(ctx context.Context, o *op.Operation, refused error) error
}

// refused gives the error of a request that cannot be read.
func (s *server) refused(ctx context.Context, o *op.Operation, err error) error {
	if p, ok := s.Path.(refuser); ok {
		return p.Refuse(ctx, o, err)
	}
	return err
}

// authenticate finds out who calls. The key is taken from the Authorization header and from nowhere else.
func (s *server) authenticate(rec *recorder, r *http.Request) (*caller.Caller, error) {
	token, err := bearer(r)
	if err != nil {
		return nil, err
	}
	found, err := s.Authenticate(r.Context(), token)
	if err != nil {
		return nil, err
	}
	return s.known(rec, r, found), nil
}

// known completes a caller with what is known of the call.
func (s *server) known(rec *recorder, r *http.Request, found *caller.Caller) *caller.Caller {
	c := *found // it may be shared with other calls
	c.Face, c.Client, c.SourceIP, c.RequestID = caller.FaceHTTP, clip(r.UserAgent()), rec.source, rec.requestID
	rec.orgID, rec.principal = c.OrgID, c.PrincipalID
	return &c
}

func bearer(r *http.Request) (string, error) {
	const how = "Send the header Authorization: Bearer KEY with a key of this deployment."
	headers := r.Header.Values("Authorization")
	if len(headers) == 0 {
		return "", errs.E(errs.Unauthenticated, "the call has no key").Because("missing_key").Suggest(how)
	}
	name, token, _ := strings.Cut(headers[0], " ")
	token = strings.TrimSpace(token)
	if len(headers) > 1 || !strings.EqualFold(name, "Bearer") || token == "" || strings.ContainsAny(token, " \t,") {
		return "", errs.E(errs.Unauthenticated, "the Authorization header is not Bearer and one key").Because("malformed_key").Suggest(how)
	}
	return token, nil
}

// clip keeps the beginning of what a program calls itself, in printable characters.
func clip(agent string) string {
	if len(agent) > 200 {
		agent = agent[:200]
	}
	return quotable(redact(agent))
}

func encoded(r *call.Result) (json.RawMessage, error) {
	if len(r.JSON) > 0 {
		return r.JSON, nil
	}
	return op.Encode(r.Value)
}

// statusOf is the status of a success: the operation's own, or 202 where the result says that it is held back for a person's approval.
func statusOf(info op.Info, body []byte) int {
	if info.Out.Properties["status"] == nil {
		return info.Status
	}
	var held struct {
		Status string `json:"status"`
	}
	if json.Unmarshal(body, &held) == nil && held.Status == "confirmation-required" {
		return http.StatusAccepted
	}
	return info.Status
}

func (s *server) write(w http.ResponseWriter, status int, body []byte) {
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // not every writer has deadlines
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a reader that has gone needs no answer; what is buffered is sent under the same deadline, which Fresh takes away
}
