package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/policy"
)

// policyFiles are the flags of policies.put, validate and test that are no members of their inputs.
type policyFiles struct {
	text string // the file with policies
}

// offline is the organization of cases that no server answers.
const offline = "org_offline"

const testHelp = `Says of each case of a table whether policies allow it, and compares that with what was wanted. Scopes of keys are not looked at.

FILE holds the cases, as YAML or JSON: a list, or an object with the member cases. With --policies the policies of that file are tried here, without a
server; else those that hold are asked for. It ends with 1 where a case came to something else than was wanted.`

const testExample = `  berth policies test cases.yaml
  berth policies test cases.yaml --policies policies.cedar`

// ofPolicies reports whether the command takes policies from a file.
func (c *command) ofPolicies() bool {
	return c.info.Name == api.PutPolicies.Name || c.info.Name == api.ValidatePolicies.Name
}

// policyFlags adds the flags of the commands on policies and gives the members of the input that no flag of their own takes.
func (c *command) policyFlags(cmd *cobra.Command) []string {
	switch {
	case c.ofPolicies():
		cmd.Flags().StringVarP(&c.policies.text, "file", "f", "", "`file` with the policies, - for standard input")
		return []string{"text"}
	case c.info.Name == api.TestPolicies.Name:
		cmd.Flags().StringVar(&c.policies.text, "policies", "", "`file` with policies to try here, without a server; - for standard input")
		_, needs, _ := strings.Cut(cmd.Long, "\n\nHTTP:")
		cmd.Long, cmd.Example = testHelp+"\n\nHTTP:"+needs, testExample
		return []string{"text", "cases", "file"}
	}
	return nil
}

// readPolicies puts the text of the file into the input.
func (c *command) readPolicies(in map[string]any) error {
	if c.policies.text == "" {
		if in["text"] == nil {
			return usagef("berth policies %s needs -f FILE with the policies", strings.TrimPrefix(c.info.Name, "policies."))
		}
		return nil
	}
	text, err := c.textOf(c.policies.text)
	in["text"] = text
	return err
}

func (c *command) textOf(file string) (string, error) {
	raw, err := readAll(file, c.stdin)
	if err != nil {
		return "", err
	}
	if !utf8.Valid(raw) {
		return "", usagef("%s is no text in UTF-8", file)
	}
	return string(raw), nil
}

// checkPolicies prints what is wrong with policies; it fails where something is.
func (c *command) checkPolicies(ctx context.Context, conn *client.Client, raw json.RawMessage) error {
	answer, err := conn.Do(ctx, c.info, raw)
	if err != nil {
		return err
	}
	var out api.ValidatePoliciesOut
	if err := json.Unmarshal(answer, &out); err != nil {
		return fmt.Errorf("decode output of %s: %w", c.info.Name, err)
	}
	switch {
	case c.output == "json":
		err = c.print(c.info, answer)
	case out.Valid:
		_, err = io.WriteString(c.app.stdout, "valid\n")
	default:
		err = c.showProblems(c.app.stdout, out.Problems)
	}
	if err == nil && !out.Valid {
		err = ExitError{Code: exitFailed}
	}
	return err
}

func (c *command) showProblems(w io.Writer, problems []api.PolicyProblem) error {
	for _, p := range problems {
		if _, err := fmt.Fprintf(w, "%s:%d:%d: %s\n", first(c.policies.text, "policies"), p.Line, p.Column, plain(p.Reason)); err != nil {
			return err
		}
	}
	return nil
}

// putPolicies says which version holds now: whoever put the text knows it.
func (c *command) putPolicies(answer json.RawMessage) error {
	var out api.PutPoliciesOut
	if err := json.Unmarshal(answer, &out); err != nil {
		return fmt.Errorf("decode output of %s: %w", c.info.Name, err)
	}
	_, err := fmt.Fprintf(c.app.stdout, "version %d holds\n", out.Policies.Version)
	return err
}

// refusedPolicies shows every problem that a refusal of policies tells of, before the refusal itself.
func (c *command) refusedPolicies(err error) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || c.info.Name != api.PutPolicies.Name || e.Details["problems"] == nil || c.output == "json" {
		return err
	}
	raw, bad := json.Marshal(e.Details["problems"])
	var problems []api.PolicyProblem
	if bad != nil || json.Unmarshal(raw, &problems) != nil {
		return err
	}
	return errors.Join(c.showProblems(c.stderr, problems), err)
}

// showPolicies prints the text, so that it can be kept in a file and put again.
func (c *command) showPolicies(ctx context.Context, conn *client.Client, raw json.RawMessage) error {
	answer, err := conn.Do(ctx, c.info, raw)
	if err != nil {
		return err
	}
	var out api.GetPoliciesOut
	if err := json.Unmarshal(answer, &out); err != nil {
		return fmt.Errorf("decode output of %s: %w", c.info.Name, err)
	}
	text := out.Policies.Text
	if out.Schema != "" {
		text = out.Schema
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	if c.width() > 0 { // what a terminal is given cannot steer it
		var b strings.Builder
		for line := range strings.Lines(strings.ReplaceAll(text, "\t", "    ")) {
			b.WriteString(plain(strings.TrimRight(line, "\r\n")) + "\n")
		}
		text = b.String()
	}
	if _, err := io.WriteString(c.app.stdout, text); err != nil {
		return err
	}
	c.note("version %d", out.Policies.Version)
	return nil
}

// testPolicies answers a table of cases, here or by the server.
func (c *command) testPolicies(cmd *cobra.Command, in map[string]any) error {
	if err := c.readCases(in); err != nil {
		return err
	}
	raw, err := c.encode(in)
	if err != nil {
		return err
	}
	var out *api.TestPoliciesOut
	if c.policies.text != "" {
		out, err = c.tryHere(raw)
	} else {
		out, err = c.tryThere(cmd, raw)
	}
	if err != nil {
		return err
	}
	if err := c.showCases(out); err != nil {
		return err
	}
	if out.Failed > 0 {
		return ExitError{Code: exitFailed}
	}
	return nil
}

func (c *command) readCases(in map[string]any) error {
	file, _ := in["file"].(string)
	delete(in, "file")
	text, err := c.textOf(file)
	if err != nil {
		return err
	}
	raw, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return usagef("%s: %v", file, err)
	}
	var list []any
	var object map[string]any
	switch {
	case json.Unmarshal(raw, &list) == nil && list != nil:
		in["cases"] = list
	case json.Unmarshal(raw, &object) == nil && object["cases"] != nil && len(object) == 1:
		in["cases"] = object["cases"]
	default:
		return usagef("%s holds no list of cases, nor an object with the member cases alone", file)
	}
	return nil
}

func (c *command) tryHere(raw json.RawMessage) (*api.TestPoliciesOut, error) {
	text, err := c.textOf(c.policies.text)
	if err != nil {
		return nil, err
	}
	schema, err := policy.Registered()
	if err != nil {
		return nil, err
	}
	set, err := schema.Checked(text)
	if e, ok := errors.AsType[*errs.Error](err); ok {
		if problems, ok := e.Details["problems"].([]api.PolicyProblem); ok {
			return nil, errors.Join(c.showProblems(c.stderr, problems), ExitError{Code: exitFailed})
		}
	}
	if err != nil {
		return nil, err
	}
	var in api.TestPoliciesIn
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, usagef("cases: %v", err)
	}
	return set.Try(in.Cases, offline, time.Now())
}

func (c *command) tryThere(cmd *cobra.Command, raw json.RawMessage) (*api.TestPoliciesOut, error) {
	conn, err := c.connect()
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.context(cmd)
	defer cancel()
	answer, err := conn.Do(ctx, c.info, raw)
	if err != nil {
		return nil, err
	}
	var out api.TestPoliciesOut
	if err := json.Unmarshal(answer, &out); err != nil {
		return nil, fmt.Errorf("decode output of %s: %w", c.info.Name, err)
	}
	return &out, nil
}

func (c *command) showCases(out *api.TestPoliciesOut) error {
	if c.output == "json" {
		return writeJSON(c.app.stdout, out)
	}
	rows := [][]string{{"CASE", "WANT", "GOT", "WHY"}}
	for _, r := range out.Items {
		got := r.Got
		if !r.Pass {
			got += " (!)"
		}
		rows = append(rows, []string{plain(r.Name), first(r.Want, "-"), got, plain(strings.Join(r.Reasons, "; "))})
	}
	if err := table(c.app.stdout, c.width(), rows); err != nil {
		return err
	}
	if out.Failed > 0 {
		c.note("%d of %d cases came to something else than was wanted", out.Failed, len(out.Items))
	}
	return nil
}
