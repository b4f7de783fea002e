package policy_test

import (
	"encoding/json"
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/docs"
	"github.com/berthrun/berth/internal/policy"
)

var block = regexp.MustCompile("(?s)```(cedar|yaml)\n(.*?)```")

// TestDocumentedExamples runs every example of the page for users with the cases below it.
func TestDocumentedExamples(t *testing.T) {
	page, err := fs.ReadFile(docs.Files(), "policies.md")
	if err != nil {
		t.Fatal(err)
	}
	s, err := policy.Registered()
	if err != nil {
		t.Fatal(err)
	}
	var set *policy.Set
	examples, cases := 0, 0
	for _, m := range block.FindAllStringSubmatch(string(page), -1) {
		if m[1] == "cedar" {
			if set, err = s.Checked(m[2]); err != nil {
				t.Fatalf("%v\n%s", err, m[2])
			}
			examples++
			continue
		}
		raw, err := yaml.YAMLToJSONStrict([]byte(m[2]))
		if err != nil {
			t.Fatalf("%v\n%s", err, m[2])
		}
		raw = []byte(`{"cases":` + string(raw) + `}`)
		if err := op.Check(api.TestPolicies.Info().In, raw); err != nil {
			t.Fatalf("%v\n%s", err, m[2])
		}
		var in api.TestPoliciesIn
		if err := json.Unmarshal(raw, &in); err != nil {
			t.Fatal(err)
		}
		out, err := set.Try(in.Cases, "org_a", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range out.Items {
			if !r.Pass || r.Want == "" {
				t.Errorf("%s: wanted %s, got %s: %s", r.Name, r.Want, r.Got, strings.Join(r.Reasons, "; "))
			}
		}
		cases += len(in.Cases)
	}
	if examples < 6 || cases < 15 {
		t.Errorf("only %d examples and %d cases were found", examples, cases)
	}
}
