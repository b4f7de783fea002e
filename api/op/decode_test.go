package op

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

type shape struct {
	WriteIn
	Name   string            `json:"name" pattern:"^[a-z]+$" maxlen:"5" doc:"A name."`
	Kind   string            `json:"kind,omitempty" enum:"a,b" doc:"A kind."`
	Count  int               `json:"count,omitempty" min:"1" max:"9" doc:"A count."`
	Big    int64             `json:"big,omitempty" doc:"A number."`
	Share  float64           `json:"share,omitempty" min:"0.5" doc:"A share."`
	On     *bool             `json:"on,omitempty" doc:"A switch."`
	Tags   []string          `json:"tags,omitempty" minitems:"1" maxitems:"2" enum:"x,y" doc:"Tags."`
	Labels map[string]string `json:"labels,omitempty" maxprops:"2" doc:"Labels."`
	At     *time.Time        `json:"at,omitempty" doc:"A time."`
	Data   []byte            `json:"data,omitempty" doc:"Bytes."`
	Inner  *inner            `json:"inner,omitempty" doc:"More."`
	Free   json.RawMessage   `json:"free,omitempty" doc:"Anything."`
}

type inner struct {
	Deep []struct {
		ID string `json:"id" id:"sbx" doc:"An id."`
	} `json:"deep" doc:"A list."`
}

func TestCheck(t *testing.T) {
	s := SchemaOf[shape](Closed)
	const id = `"sbx_aaaaaaaaaaaaaaaaaaaa"`
	tests := []struct {
		raw  string
		path string // of the problem; "ok" where there is none
	}{
		{`{"name":"abc"}`, "ok"},
		{` {"name":"abc","kind":"a","count":9,"big":9007199254740992,"share":0.5,"on":false,"tags":["x","y"],"labels":{"K":"v","k":"v"}} `, "ok"},
		{`{"name":"abc","at":"2026-01-02T15:04:05Z","inner":{"deep":[{"id":` + id + `}]},"free":{"a":[null,{"A":1,"a":2}]}}`, "ok"},
		{`{"name":"abc","idempotencyKey":"a:b.c_d-e"}`, "ok"},
		{`{"name":"abc","free":null}`, "ok"},
		{`{"name":"abc","count":3e0}`, "count"},
		{``, "name"},
		{`{}`, "name"},
		{`[]`, ""},
		{`null`, ""},
		{`"x"`, ""},
		{`{`, ""},
		{`{"name":"abc"`, ""},
		{`{"name":"abc"}}`, ""},
		{`{"name":"abc"} {}`, ""},
		{`{"name":"abc",}`, ""},
		{"{\"name\":\"a\xff\"}", ""},
		{`{"name":"abc","name":"abc"}`, "name"},
		{`{"name":"abc","n\u0061me":"abc"}`, "name"},
		{`{"Name":"abc"}`, "Name"},
		{`{"name":"abc","nope":1}`, "nope"},
		{`{"name":"abc","a.b\n":1}`, `"a.b\n"`},
		{`{"name":"abc","` + strings.Repeat("x", 200) + `":1}`, strings.Repeat("x", 64) + "…"},
		{`{"name":null}`, "name"},
		{`{"name":1}`, "name"},
		{`{"name":"ABC"}`, "name"},
		{`{"name":"abcdef"}`, "name"},
		{`{"name":"abc\n"}`, "name"},
		{`{"name":"abc","kind":"c"}`, "kind"},
		{`{"name":"abc","kind":""}`, "kind"},
		{`{"name":"abc","count":0}`, "count"},
		{`{"name":"abc","count":10}`, "count"},
		{`{"name":"abc","count":1.5}`, "count"},
		{`{"name":"abc","count":"1"}`, "count"},
		{`{"name":"abc","big":9007199254740993}`, "big"},
		{`{"name":"abc","big":1e400}`, "big"},
		{`{"name":"abc","share":0.4}`, "share"},
		{`{"name":"abc","share":1e999}`, "share"},
		{`{"name":"abc","on":"true"}`, "on"},
		{`{"name":"abc","tags":[]}`, "tags"},
		{`{"name":"abc","tags":["x","x","x"]}`, "tags"},
		{`{"name":"abc","tags":["x","z"]}`, "tags[1]"},
		{`{"name":"abc","tags":["x",null]}`, "tags[1]"},
		{`{"name":"abc","tags":{}}`, "tags"},
		{`{"name":"abc","labels":{"a":"1","b":"2","c":"3"}}`, "labels"},
		{`{"name":"abc","labels":{"a":1}}`, "labels.a"},
		{`{"name":"abc","labels":{"a":"1","a":"2"}}`, "labels.a"},
		{`{"name":"abc","at":"yesterday"}`, "at"},
		{`{"name":"abc","inner":{}}`, "inner.deep"},
		{`{"name":"abc","inner":{"deep":[{"id":` + id + `},{"id":"sbx_1"}]}}`, "inner.deep[1].id"},
		{`{"name":"abc","inner":{"deep":[{"id":` + id + `,"ID":` + id + `}]}}`, "inner.deep[0].ID"},
		{`{"name":"abc","idempotencyKey":"a b"}`, "idempotencyKey"},
		{`{"name":"abc","free":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`, "free" + strings.Repeat("[0]", 32)},
		{`{"name":"abc","free":{"a":1,"a":2}}`, "free.a"},
	}
	for _, tt := range tests {
		err := Check(s, []byte(tt.raw))
		if tt.path == "ok" {
			if err != nil {
				t.Errorf("%.100s: %v", tt.raw, err)
			}
			continue
		}
		if !errs.Is(err, errs.InvalidInput) {
			t.Errorf("%.100s: got %v, want INVALID_INPUT", tt.raw, err)
			continue
		}
		e := errs.From(err)
		if got := e.Details["path"]; got != tt.path {
			t.Errorf("%.100s: path %q, want %q", tt.raw, got, tt.path)
		}
		if strings.ContainsAny(e.Message, "\n\x1b") || len(e.Message) > 600 || e.Suggestion == "" {
			t.Errorf("%.100s: message %q, suggestion %q", tt.raw, e.Message, e.Suggestion)
		}
	}
}

func TestDecode(t *testing.T) {
	s := SchemaOf[shape](Closed)
	in, err := decodeInto[shape](s, []byte(`{"name":"abc","on":false,"tags":["x"],"data":"aGk=","free":{"b":1},"idempotencyKey":"k"}`))
	if err != nil {
		t.Fatal(err)
	}
	if in.Name != "abc" || in.On == nil || *in.On || in.RetryKey() != "k" || string(in.Data) != "hi" || string(in.Free) != `{"b":1}` {
		t.Errorf("got %+v", in)
	}
	if _, err := decodeInto[shape](s, []byte(`{"name":"abc","data":"no base64!"}`)); !errs.Is(err, errs.InvalidInput) {
		t.Errorf("bytes that are no base64: got %v", err)
	}
}

// Whatever passes the check is read by the standard decoder without a loss, and passes again once written.
func FuzzDecode(f *testing.F) {
	for _, raw := range []string{
		``, `{"name":"abc"}`, `{"name":"abc","labels":{"a":"b"},"free":[1,{"a":null}]}`, `{"name":"abc","inner":{"deep":[{"id":"sbx_aaaaaaaaaaaaaaaaaaaa"}]}}`,
		`{"name":"abc","at":"2026-01-02T15:04:05.123456789+01:00","share":1e2,"big":-5}`, `{"name":"abc","name":"x"}`, "{\"name\":\"\xff\"}",
	} {
		f.Add([]byte(raw))
	}
	s := SchemaOf[shape](Closed)
	f.Fuzz(func(t *testing.T, raw []byte) {
		in, err := decodeInto[shape](s, raw)
		if err != nil {
			if !errs.Is(err, errs.InvalidInput) {
				t.Errorf("got %v", err)
			}
			return
		}
		strict := json.NewDecoder(bytes.NewReader(raw))
		strict.DisallowUnknownFields()
		var same shape
		if err := strict.Decode(&same); err != nil || !reflect.DeepEqual(in, &same) {
			t.Errorf("the standard decoder gives %+v, %v; got %+v", same, err, in)
		}
		b, err := json.Marshal(in)
		if err != nil {
			t.Fatalf("write %+v: %v", in, err)
		}
		if err := Check(s, b); err != nil {
			t.Errorf("%s is refused once written as %s: %v", raw, b, err)
		}
	})
}

// TestBoundsAreWrittenOut shows a large bound as a person writes it.
func TestBoundsAreWrittenOut(t *testing.T) {
	most := 1048576.0
	err := Check(&Schema{Type: "integer", Maximum: &most}, []byte(`2000000`))
	if err == nil || !strings.Contains(err.Error(), "must be at most 1048576") {
		t.Errorf("%v", err)
	}
}
