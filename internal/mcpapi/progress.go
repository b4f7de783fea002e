package mcpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// progressToken gives the token under which the client wants to hear of progress: a string or a number.
func (x *exchange) progressToken() (json.RawMessage, bool) {
	token := x.meta["progressToken"]
	return token, len(token) > 0 && validID(token)
}

type outcome struct {
	text []byte
	err  error
}

// follow does the call beside a clock. A call that is over before the first tick is answered with plain JSON; from then on the answer is a stream
// of events: progress in seconds, and the response at its end.
func (x *exchange) follow(ctx context.Context, token json.RawMessage) {
	done := make(chan outcome, 1)
	go func() {
		text, err := x.run(ctx)
		done <- outcome{text, err}
	}()
	tick := time.NewTicker(x.h.cfg.ProgressEvery)
	defer tick.Stop()
	start := time.Now()
	last := int64(0)
	for {
		select {
		case o := <-done: // run ends with ctx, so that nothing outlives the request
			body := x.answer(o.text, o.err)
			if !x.streaming {
				x.write(http.StatusOK, body)
				return
			}
			x.event(body)
			return
		case <-tick.C:
			last = max(last+1, int64(time.Since(start)/time.Second)) // it must grow
			x.event(progress(token, last))
		}
	}
}

func progress(token json.RawMessage, seconds int64) []byte {
	b := append([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`), token...)
	b = strconv.AppendInt(append(b, `,"progress":`...), seconds, 10)
	return append(b, `,"message":"still at work"}}`...)
}

// event writes one server-sent event; the first one makes the answer a stream. JSON holds no line break of its own.
func (x *exchange) event(data []byte) {
	if !x.streaming {
		x.streaming = true
		x.w.Header().Set("Content-Type", "text/event-stream")
		x.w.WriteHeader(http.StatusOK)
	}
	b := append([]byte("event: message\ndata: "), data...)
	_, _ = x.w.Write(append(b, "\n\n"...)) // a client that is gone is noticed by its context
	x.w.Flush()
}
