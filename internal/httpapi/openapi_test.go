package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/client"
)

func TestOpenAPIOperation(t *testing.T) {
	raw, err := OpenAPI([]op.Info{removeThing.Info(), changeThing.Info(), listThings.Info()}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Servers []any
		Paths   map[string]map[string]struct {
			OperationID string `json:"operationId"`
			Tags        []string
			Berth       map[string]any `json:"x-berth"`
			Parameters  []struct{ Name, In, Style string }
			RequestBody *struct{ Required bool }
			Responses   map[string]any
		}
		Components struct {
			Schemas map[string]struct {
				Properties           map[string]any
				AdditionalProperties *bool
			}
		}
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	remove, change, list := doc.Paths["/v1/things/{thingId}"]["delete"], doc.Paths["/v1/things/{thingId}"]["patch"], doc.Paths["/v1/things"]["get"]
	names := func(ps []struct{ Name, In, Style string }) (s []string) {
		for _, p := range ps {
			s = append(s, strings.TrimRight(p.In+" "+p.Name+" "+p.Style, " "))
		}
		return s
	}
	for name, tt := range map[string]struct{ got, want any }{
		"delete's arguments": {names(remove.Parameters), []string{"path thingId", "query idempotencyKey", "query force", "header Idempotency-Key"}},
		"delete's extension": {remove.Berth, map[string]any{"action": "test:things:delete", "hints": []any{"write", "destructive"}}},
		"patch's arguments":  {names(change.Parameters), []string{"path thingId", "header Idempotency-Key"}},
		"list's arguments":   {names(list.Parameters), []string{"query cursor", "query limit", "query state form", "query labels deepObject", "query size deepObject", "query big"}},
		"a body's members":   {len(doc.Components.Schemas["ThingsUpdateInput"].Properties), 2},
		"a body is closed":   {*doc.Components.Schemas["ThingsUpdateInput"].AdditionalProperties, false},
		"outputs are open":   {doc.Components.Schemas["ThingsUpdateOutput"].AdditionalProperties, (*bool)(nil)},
		"no body":            {remove.RequestBody == nil, true},
		"a body":             {change.RequestBody != nil && !change.RequestBody.Required, true},
		"a held answer":      {change.Responses["202"] != nil && list.Responses["202"] == nil, true},
		"body errors":        {change.Responses["413"] != nil && list.Responses["413"] == nil, true},
		"no servers":         {len(doc.Servers), 0},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestOpenAPIIsServed(t *testing.T) {
	f := setup(nil)
	w := f.send("GET", "/v1/openapi.json", "", "Authorization", "")
	var infos []op.Info
	for _, o := range registry().All() {
		infos = append(infos, o.Info)
	}
	want, err := OpenAPI(infos, streamInfos(), "https://berth.example/")
	if err != nil {
		t.Fatal(err)
	}
	if w.Code != 200 || !bytes.Equal(w.Body.Bytes(), want) {
		t.Errorf("status %d; the document differs from run to run or from what is served", w.Code)
	}
}

// TestClientAndServerAgree sends inputs of every kind through the client, in process and over the network, and looks at what arrives.
func TestClientAndServerAgree(t *testing.T) {
	f := setup(nil)
	c, err := client.New("http://berth.test", goodKey, client.InProcess(f))
	if err != nil {
		t.Fatal(err)
	}
	in := listIn{
		PageIn: op.PageIn{Limit: 7, Cursor: "a&b=c d;é"}, State: []string{"on", "off"}, Labels: map[string]string{"a.b": "1", "c[d]": "=", "": "&"},
		Size: &size{Width: 1.5, Height: -3}, Big: true,
	}
	if _, err := client.Call(context.Background(), c, listThings, in); err != nil {
		t.Fatal(err)
	}
	var got listIn
	if err := json.Unmarshal(f.path.raw, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, got); diff != "" {
		t.Errorf("what arrives (-want +got):\n%s", diff)
	}
	no := false
	if _, err := client.Call(context.Background(), c, removeThing, removeIn{thingIn2: thingIn2{"a /%é"}, Force: &no, WriteIn: op.WriteIn{IdempotencyKey: "k"}}); err != nil {
		t.Fatal(err)
	}
	if got, want := string(f.path.raw), `{"thingId":"a /%é","force":false,"idempotencyKey":"k"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
