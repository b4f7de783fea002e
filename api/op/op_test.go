package op

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type out struct {
	WriteOut
	List  []string          `json:"list"`
	Map   map[string]string `json:"map"`
	Maybe []string          `json:"maybe,omitempty"`
	Next  *string           `json:"next" null:"true"`
	When  *time.Time        `json:"when,omitempty"`
	Inner *outInner         `json:"inner,omitempty"`
	Items []outInner        `json:"items"`
	Bytes []byte            `json:"bytes,omitempty"`
}

type outInner struct {
	Tags []string `json:"tags"`
}

func TestEncode(t *testing.T) {
	given := &out{Inner: &outInner{}, Items: []outInner{{}, {Tags: []string{"a"}}}}
	b, err := Encode(given)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"idempotencyKey":"","list":[],"map":{},"next":null,"inner":{"tags":[]},"items":[{"tags":[]},{"tags":["a"]}]}`
	if diff := cmp.Diff(want, string(b)); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	if given.List != nil || given.Inner.Tags != nil || given.Items[0].Tags != nil {
		t.Errorf("the given output was changed: %+v", given)
	}
}

func TestSchema(t *testing.T) {
	in, err := json.Marshal(SchemaOf[inner](Closed))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"type":"object","properties":{"deep":{"type":"array","description":"A list.","items":{"type":"object","properties":{"id":{"type":"string",` +
		`"description":"An id.","pattern":"^sbx_[a-z0-9]{20}$"}},"required":["id"],"additionalProperties":false}}},"required":["deep"],"additionalProperties":false}`
	if diff := cmp.Diff(want, string(in)); diff != "" {
		t.Errorf("input (-want +got):\n%s", diff)
	}
	o := SchemaOf[out](Open)
	if o.AdditionalProperties != nil || o.Properties["next"].Type != "" || !o.Properties["next"].Nullable || o.Properties["inner"].AdditionalProperties != nil {
		t.Errorf("output: got %+v", o)
	}
	if diff := cmp.Diff([]string{"idempotencyKey", "list", "map", "next", "items"}, o.Required); diff != "" {
		t.Errorf("required (-want +got):\n%s", diff)
	}
}

func TestSchemaPanics(t *testing.T) {
	for name, build := range map[string]func(){
		"channel":    func() { SchemaOf[struct{ C chan int }](Closed) },
		"no name":    func() { SchemaOf[struct{ C int }](Closed) },
		"twice":      func() { SchemaOf[twice](Closed) },
		"bad number": func() { SchemaOf[badNumber](Closed) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: a schema was built", name)
				}
			}()
			build()
		}()
	}
}

type twice struct {
	WriteIn
	Again string `json:"idempotencyKey"`
}

type badNumber struct {
	N int `json:"n" min:"one"`
}

var makeDef = Def[shape, out]{Name: "things.make", Route: "POST /v1/things/{name}/{rest...}", Action: "test:things:make", Tool: "make_thing", Hints: Write, Doc: "Makes."}

func TestHandle(t *testing.T) {
	r := NewRegistry()
	boom := errors.New("boom")
	Handle(r, makeDef, Handler[shape, out]{
		Draft: func(_ context.Context, in *shape) (*Draft, error) {
			return &Draft{Resource: Resource{Name: in.Name}}, nil
		},
		Act: func(_ context.Context, in *shape, d *Draft) (*out, error) {
			if d.Resource.Name != in.Name {
				return nil, boom
			}
			return &out{List: []string{in.Name}}, nil
		},
	})
	o := r.Get("things.make")
	if o == nil || r.Tool("make_thing") != o || r.Tool("") != nil || r.Get("none") != nil || len(r.All()) != 1 || o.Status != 200 {
		t.Fatalf("got %+v", o)
	}
	if diff := cmp.Diff([]string{"name", "rest"}, o.PathParams()); diff != "" {
		t.Errorf("path (-want +got):\n%s", diff)
	}
	in, err := o.Decode([]byte(`{"name":"abc"}`))
	if err != nil {
		t.Fatal(err)
	}
	d, err := o.Draft(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Intent(t.Context(), nil, in, d); err != nil {
		t.Error(err)
	}
	result, err := o.Act(t.Context(), in, d)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Encode(result)
	if err != nil {
		t.Fatal(err)
	}
	back, err := o.Result(b)
	if err != nil || back.(*out).List[0] != "abc" {
		t.Errorf("got %+v, %v back", back, err)
	}
	// A failed act gives no typed nil.
	if got, err := o.Act(t.Context(), in, &Draft{}); got != nil || !errors.Is(err, boom) {
		t.Errorf("got %v, %v", got, err)
	}
	other := makeDef
	other.Name, other.Tool = "things.other", "other"
	for name, def := range map[string]Def[shape, out]{"the same": makeDef, "the same route": other, "incomplete": {Name: "x"}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: was bound", name)
				}
			}()
			Handle(r, def, Handler[shape, out]{
				Draft: func(context.Context, *shape) (*Draft, error) { return nil, nil },
				Act:   func(context.Context, *shape, *Draft) (*out, error) { return nil, nil },
			})
		}()
	}
}

func TestYield(t *testing.T) {
	Yield(t.Context())() // without anyone who counts
	log := ""
	ctx := WithYield(t.Context(), func() func() {
		log += "away "
		return func() { log += "back" }
	})
	Yield(ctx)()
	if log != "away back" {
		t.Errorf("got %q", log)
	}
}
